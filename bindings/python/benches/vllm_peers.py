"""Time to the first token in an engine of vLLM on a second node: a prefix that nobody has computed, one that is on the first node, and one that is on its own node.

python benches/vllm_peers.py [--tokens N] [--rounds N] [--json FILE]

Both nodes are on this machine: two daemons and two gateways over loopback. Engine A is on the first node, engine B on the second one. In each round, A computes a
prompt with a new prefix. Then B computes a prompt with another new prefix (cold), and asks for A's prefix with another end (fetched) and then with a third end (local),
in an order that changes. Engine C has no connector. It generates the right tokens. vLLM's own prefix cache is off. Needs `tensorlend-gateway` on the
path, or TENSORLEND_BIN_DIR.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import sys
import tempfile
from typing import Any

from measure import machine, markdown, parser, spread, write
from vllm_ttft import COMPARED, END, MODEL

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))
import gateways
import vllm_engine
from vllm_engine import Process, ending, prompt

from tensorlend.kvcache import summary

ROWS = {
    "lends": "A, first node: new prefix, computed and lent",
    "cold": "B, second node: new prefix, computed and lent",
    "fetched": "B: A's prefix, fetched from the first node",
    "local": "B: A's prefix again, lent on the second node",
}


def one_round(number: int, tokens: int, a: Process, b: Process, c: Process) -> dict[str, Any]:
    """Returns a round's answers."""
    ends = [prompt(90 + end, END) for end in range(3)]
    lent, new = (prompt(1000 * kind + number, tokens) for kind in (1, 2))
    found = {"lends": a.ask([*lent, *ends[0]], count=1)}

    def cold() -> None:
        found["cold"] = b.ask([*new, *ends[1]], count=1)

    def fetched() -> None:
        found["fetched"] = b.ask([*lent, *ends[1]], count=1)
        found["local"] = b.ask([*lent, *ends[2]], count=1)

    turns = [cold, fetched]
    random.Random(number).shuffle(turns)
    for turn in turns:
        turn()
    ours, right = (engine.ask([*lent, *ends[1]], count=COMPARED)["tokens"] for engine in (b, c))
    found["is_right"] = ours == right
    load = os.getloadavg()[0]
    print(number, load, {name: (round(found[name]["seconds"], 3), found[name]["cached"]) for name in ROWS}, file=sys.stderr, flush=True)
    return {**found, "load": load}


def main() -> None:
    """Prints a table, and writes JSON."""
    options = parser(__doc__, rounds=5)
    options.add_argument("--tokens", type=int, default=2000)
    options.add_argument("--json")
    arguments = options.parse_args()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        here, there = stack.enter_context(gateways.two(folder))
        model = vllm_engine.model(folder / "model", gain=2, **MODEL)
        engines = []
        for node, extra in ((there, {}), (here, {"peers": ["there"], "peer_wait_s": 10}), (None, {})):
            transfer = None if node is None else vllm_engine.connector(node.address)
            if transfer is not None:
                transfer["kv_connector_extra_config"].update(weights_version="1", **extra)
            engines.append(Process(model, transfer, folder / "log", {"enable_prefix_caching": False}))
        with ending(engines, folder / "log"):
            for number, engine in enumerate(engines):
                engine.ready().ask(prompt(number + 1, arguments.tokens), count=1)
            rounds = [one_round(number, arguments.tokens, *engines) for number in range(arguments.rounds)]
        counters, gateway = vars(summary(here.client).counters), here.stat()
    rows = []
    for name, what in ROWS.items():
        answers = [found[name] for found in rounds]
        cached = ", ".join(f"{count:,}" for count in sorted({answer["cached"][0] for answer in answers}))
        rows.append([what, *(spread([answer[field] for answer in answers], 3) for field in ("seconds", "processor_s")), cached])
    lines = [markdown(["prompt", "time to the first token, s", "processor time of the engine, s", "tokens from a cache"], rows)]
    for name in ("fetched", "local"):
        ratios = [found["cold"]["seconds"] / found[name]["seconds"] for found in rounds]
        lines.append(f"\nCold divided by {name}: {spread(ratios, 3)}.")
    print(machine(), "", *lines, "", counters, {name: gateway[name] for name in ("fetched", "fetched_bytes", "troubles")}, sep="\n")
    facts = {"model": MODEL, "prefix": arguments.tokens, "counters": counters, "gateway": gateway}
    write(arguments.json, **facts, rounds=rounds)
    assert all(found["is_right"] for found in rounds), "the tokens differ"


if __name__ == "__main__":
    main()
