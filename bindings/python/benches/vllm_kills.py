"""Kills of engines of vLLM and of their daemon: what the survivors lose, and what remains in the cache.

python benches/vllm_kills.py FILE [--kills N] [--seconds N]

Engines A and B share a cache; engine C has no connector and says which tokens are right. vLLM's own prefix cache is off, so all tokens
from a cache are lent ones. The daemon has an fd store. Before each kill, the victim is in the middle of a prompt that nobody has computed. After it:

* Survivors answer the prompts that they had at the time of the kill.
* The next engine, or both engines after the daemon's kill, answer `PROMPTS` known prompts. Their tokens from the cache, divided by all
  their tokens, are the hit rate.
* The survivor answers the victim's prompt, whose blocks the victim has saved in part.
* When the daemon has collected the victim's memory, its orphaned bytes are counted: segments of ended clients without a value or a lease, and bytes
  in use that belong to no segment.

Of ten kills, four are of the daemon, and the last two are of both engines at once. While neither runs, the bytes in use beyond those of the blocks are counted. This
is free space in segments of ended engines: the daemon takes a segment back when its last block is evicted. At the end, all blocks are deleted. The daemon then must have
no bytes in use. Needs the program `tensorlend` on the path, or TENSORLEND_BIN_DIR. Each kill adds a line to FILE. If FILE exists, the run goes on after the kills in it, with an empty cache.
"""

from __future__ import annotations

import json
import pathlib
import random
import sys
import tempfile
import time
from typing import Any

from measure import machine, parser
from orphans import Orphans

import tensorlend

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))
import vllm_engine
from stored_daemon import StoredDaemon
from vllm_engine import Process, prompt
from waiting import eventually

PROMPTS, LENGTH, NEW = 4, 500, 1500
#: Victims of ten kills.
VICTIMS = ["A", "daemon", "B", "daemon", "A", "daemon", "B", "daemon", "A and B"]


class Run:
    """The daemon, the engines, and what they answered."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._log = folder / "engines"
        self._model = vllm_engine.model(folder / "model", gain=2)
        self.daemon = StoredDaemon(folder)
        self.orphans = Orphans(self.daemon.socket, folder)
        self.known = [prompt(seed, LENGTH) for seed in range(PROMPTS)]
        self.engines = {name: self._start(name) for name in "ABC"}
        self._right: dict[tuple[int, ...], list[int]] = {}
        for name in "CAB":
            self.engines[name].ready()
        self.hit_rate("A")
        self.first_rate = self.hit_rate("B")

    def _start(self, name: str) -> Process:
        transfer = None if name == "C" else vllm_engine.connector(self.daemon.socket)
        return Process(self._model, transfer, self._log, {"enable_prefix_caching": False})

    def right(self, tokens: list[int]) -> list[int]:
        """Returns the tokens of engine C."""
        key = tuple(tokens)
        if key not in self._right:
            (self._right[key],) = self.engines["C"].ask(tokens)["tokens"]
        return self._right[key]

    def check(self, prompts: list[list[int]], answer: dict[str, Any]) -> dict[str, Any]:
        """Compares an answer with the tokens of engine C."""
        assert answer["tokens"] == [self.right(one) for one in prompts], "the tokens differ"
        return answer

    def hit_rate(self, name: str) -> float:
        """Asks for the known prompts. Returns the fraction of their tokens that came from the cache."""
        answer = self.check(self.known, self.engines[name].ask(*self.known))
        return float(sum(answer["cached"]) / (PROMPTS * LENGTH))

    def kill(self, number: int, victim: str) -> dict[str, Any]:
        """Kills, and returns what was lost."""
        draw = random.Random(number)
        new = prompt(10_000 + number, NEW)
        engines = [name for name in "AB" if name in victim]
        survivors = [name for name in "AB" if name not in engines]
        for name in "AB":
            self.engines[name].send(new if name in engines or victim == "daemon" else draw.choice(self.known))
        time.sleep(draw.uniform(0, 0.5))
        found: dict[str, Any] = {"victim": victim, "kills": len(engines) or 1}
        if victim == "daemon":
            self.daemon.kill()
            # The service manager needs some time.
            time.sleep(draw.choice([0, 0.1, 0.5, 2]))
            self.daemon.start()
        for name in engines:
            self.engines[name].kill()
        found["requests"], found["slowest_s"] = 0, 0.0
        for name in survivors:
            answer = self.engines[name].receive()
            assert answer["tokens"] in ([self.right(one)] for one in [new, *self.known]), "the tokens differ"
            found["requests"] += 1
            found["slowest_s"] = max(found["slowest_s"], answer["seconds"])
        if victim == "A and B":
            found["block_bytes"], found["free_bytes"] = self.beside_blocks()
        for name in engines:
            self.engines[name] = self._start(name)
        for name in engines:
            self.engines[name].ready()
        found["hit_rate"] = min(self.hit_rate(name) for name in engines or "AB")
        last = self.check([new], self.engines[(survivors or ["A"])[0]].ask(new))
        found["requests"] += (len(engines) or 2) * PROMPTS + 1
        found["cached_of_new"] = last["cached"][0]
        found["orphaned_bytes"] = self.orphans.bytes()
        return found

    def beside_blocks(self) -> tuple[int, int]:
        """Returns the bytes of all blocks, and the other bytes in use. No engine runs."""
        with tensorlend.connect(self.daemon.socket) as client:
            for name in [*client.names("kv-reports/*/*"), *client.names("kv-models/*")]:
                client.delete(name)
            eventually("the end of the engines", lambda: client.stat()["clients"] == 2)
            blocks = sum(info.nbytes for info in client.list("kv/*/*"))
            return blocks, int(client.stat()["bytes_in_use"]) - blocks

    def close(self) -> None:
        """Ends all processes. Without names, the daemon must have no bytes in use."""
        for engine in self.engines.values():
            engine.kill()
        self.orphans.close()
        with tensorlend.connect(self.daemon.socket) as client:
            for name in client.names("*"):
                client.delete(name)
        with tensorlend.connect(self.daemon.socket) as client:
            eventually("no bytes in use", lambda: client.stat()["bytes_in_use"] == 0)
        self.daemon.close()


def report(lines: list[dict[str, Any]]) -> str:
    """Returns a table in Markdown."""
    rows = ["| victim | kills | requests answered | lost | slowest request, s | lowest hit rate, of the first |", "|---|--:|--:|--:|--:|--:|"]
    for victim in dict.fromkeys(VICTIMS):
        some = [line for line in lines if line["victim"] == victim]
        if some:
            kills, requests = (sum(line[name] for line in some) for name in ("kills", "requests"))
            rate = min(line["hit_rate"] / line["first_rate"] for line in some)
            rows.append(f"| {victim} | {kills} | {requests} | 0 | {max(line['slowest_s'] for line in some):.2f} | {rate:.3f} |")
    both = [line for line in lines if "free_bytes" in line]
    if both:
        sizes = (f"{both[-1][name] / (1 << 20):.0f} MiB" for name in ("block_bytes", "free_bytes"))
        rows.append("\nAfter the last kill of both engines: blocks of {}, and free space of {} in their segments.".format(*sizes))
    rows.append(f"\nOrphaned bytes after each kill: at most {max(line['orphaned_bytes'] for line in lines)}.")
    return "\n".join([*rows, "After all blocks were deleted, the daemon had 0 bytes in use."])


def main() -> None:
    """Kills until the number or the time is reached, and prints a table."""
    options = parser(__doc__)
    options.add_argument("file", type=pathlib.Path)
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--seconds", type=float, default=float("inf"))
    arguments = options.parse_args()
    end = time.monotonic() + arguments.seconds
    lines = [json.loads(line) for line in arguments.file.read_text().splitlines()] if arguments.file.exists() else []
    done = sum(line["kills"] for line in lines)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(pathlib.Path(folder))
        try:
            while done < arguments.kills and time.monotonic() < end:
                line = run.kill(done, VICTIMS[done % 10])
                lines.append({**line, "first_rate": run.first_rate})
                done += line["kills"]
                with arguments.file.open("a") as file:
                    print(json.dumps(lines[-1]), file=file)
            run.close()
        except BaseException:
            print((pathlib.Path(folder) / "engines").read_text(errors="replace")[-3000:], file=sys.stderr)
            raise
        finally:
            for engine in run.engines.values():
                engine.kill()
            run.orphans.close()
    print(machine(), report(lines), sep="\n\n")


if __name__ == "__main__":
    main()
