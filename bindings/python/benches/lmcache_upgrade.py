"""An upgrade of the process that owns the cache: LMCache's server compared with tensorlend's daemon. LMCache#4069 reports workers that die silently.

python benches/lmcache_upgrade.py [--signal TERM|KILL] [--contender lmcache|tensorlend]

Needs vLLM and, for its contender, LMCache. Engines A and B share a cache, and engine C has none and says which tokens are right. The owner of the cache gets the
signal, and another one starts in its place. tensorlend's daemon has an fd store. A line shows each request: its time, its tokens from the cache, whether
its tokens are right, and the exit status of an engine that has died.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from measure import machine, parser

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))
import vllm_engine
from stored_daemon import StoredDaemon
from vllm_engine import Process, ending, prompt

#: Tokens of a prompt. LMCache's chunks have 256 tokens.
LENGTH = 1000
#: Seconds that a request may take, and that engines get to find the next owner.
ANSWER_S, AGAIN_S = 150.0, 12.0


class LMCache:
    """LMCache's server."""

    def __init__(self, folder: pathlib.Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
            self._port, self._http = one.getsockname()[1], two.getsockname()[1]
        self._log, self._starts = folder / "server", 0
        self.start()

    def transfer(self) -> dict[str, Any]:
        """Returns the fields of vLLM's `KVTransferConfig`."""
        extra = {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": self._port}
        return {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}

    def start(self) -> None:
        """Starts the server, and waits for it."""
        program = shutil.which("lmcache", path=os.path.dirname(sys.executable)) or "lmcache"
        options = f"server --host localhost --port {self._port} --http-port {self._http} --l1-size-gb 1 --l1-init-size-gb 1"
        more = f"--eviction-policy LRU --chunk-size 256 --supported-transfer-mode engine_driven --shm-name upgrade{os.getpid()}"
        environment = {**os.environ, "LMCACHE_TRACK_USAGE": "false", "PYTHONUNBUFFERED": "1"}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen([program, *options.split(), *more.split()], stdout=log, stderr=log, env=environment)
        self._starts += 1
        while self._log.read_text(errors="replace").count("Uvicorn running") < self._starts:
            assert self.process.poll() is None, self._log.read_text(errors="replace")[-3000:]
            time.sleep(0.2)

    def end(self, number: int) -> None:
        """Sends a signal, and waits for the server's end."""
        self.process.send_signal(number)
        self.process.wait()

    def close(self) -> None:
        """Ends the server."""
        self.process.kill()
        self.process.wait()


class Tensorlend:
    """tensorlend's daemon with its fd store."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._daemon = StoredDaemon(folder)
        self.start = self._daemon.start
        self.close = self._daemon.close

    def transfer(self) -> dict[str, Any]:
        """Returns the fields of vLLM's `KVTransferConfig`."""
        return vllm_engine.connector(self._daemon.socket)

    def end(self, number: int) -> None:
        """Sends a signal, and waits for the daemon's end."""
        self._daemon.kill(number)


def ask(name: str, engine: Process, right: Process, tokens: list[int], when: str) -> None:
    """Asks for tokens, and prints what came."""
    begun = time.perf_counter()
    engine.send(tokens, count=4)
    try:
        answer = engine.receive(ANSWER_S)
    except EOFError:
        engine.process.join()
        print(f"| {when} | {name} | died, exit status {engine.process.exitcode} | | |", flush=True)
        return
    except TimeoutError:
        print(f"| {when} | {name} | no answer in {ANSWER_S:g} s | | |", flush=True)
        return
    seconds = time.perf_counter() - begun
    same = answer["tokens"] == right.ask(tokens, count=4)["tokens"]
    print(f"| {when} | {name} | {seconds:.2f} | {answer['cached'][0]} | {'yes' if same else 'NO'} |", flush=True)


def run(contender: type[LMCache] | type[Tensorlend], number: int, folder: pathlib.Path) -> None:
    """Prints the rows of a contender."""
    owner = contender(folder)
    model = vllm_engine.model(folder / "model", gain=2)
    transfer, log = owner.transfer(), folder / "engines"
    a, b, c = (Process(model, one, log, {"enable_prefix_caching": one is None}) for one in (transfer, transfer, None))
    p, q, r, s = (prompt(seed, LENGTH) for seed in range(1, 5))
    with contextlib.closing(owner), ending((a, b, c), log):
        for engine in (a, b, c):
            engine.ready()
        for name, engine, tokens in (("A computes p", a, p), ("B asks for p", b, p), ("A computes q", a, q)):
            ask(name, engine, c, tokens, "before")
            time.sleep(1)
        owner.end(number)
        ask("B asks for q", b, c, q, "without the owner")
        ask("A computes r", a, c, r, "without the owner")
        owner.start()
        time.sleep(AGAIN_S)
        for name, engine, tokens in (("B asks for q", b, q), ("B computes s", b, s), ("A asks for s", a, s)):
            ask(name, engine, c, tokens, "with the next owner")
            time.sleep(1)


def main() -> None:
    """Prints a table for each contender."""
    options = parser(__doc__)
    options.add_argument("--signal", choices=["TERM", "KILL"], default="KILL")
    contenders = {"lmcache": LMCache, "tensorlend": Tensorlend}
    options.add_argument("--contender", choices=contenders, action="append")
    arguments = options.parse_args()
    print(machine())
    for name in arguments.contender or contenders:
        print(f"\n{name}, SIG{arguments.signal}\n\n| when | request | time, s | tokens from the cache | right tokens |\n|---|---|--:|--:|---|", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            run(contenders[name], getattr(signal, f"SIG{arguments.signal}"), pathlib.Path(folder))


if __name__ == "__main__":
    main()
