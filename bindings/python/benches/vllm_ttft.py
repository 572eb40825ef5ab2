"""Time to the first token in a second engine of vLLM on the CPU: a prefix that nobody has computed, and one that the first engine has lent.

python benches/vllm_ttft.py [--tokens N] [--rounds N] [--json FILE] [--transfer JSON]

Three engines run at the same time. In each round, engine A computes a prompt with a new prefix and lends its blocks. Then the contenders take turns, in an
order that changes from round to round: engine B computes a prompt with another new prefix (cold), and A's prefix with another end (lent). Engine C has no
connector. It computes B's lent prompt (no connector), and then its prefix with another end (own cache: the blocks are in C's own memory).
B and C then generate more tokens of the same prompt, which must be the same. Each engine computes in one thread. The model has 12 layers, a width of 1,024, and random
weights. `--transfer` has the fields of another connector's `KVTransferConfig`, to compare it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import random
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from measure import machine, markdown, parser, spread, write

import tensorlend
from tensorlend.kvcache import summary

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))
import vllm_engine
from vllm_engine import Process, ending, prompt

MODEL = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4}
#: Tokens after the shared prefix, and tokens that are compared.
END, COMPARED = 16, 32
ROWS = {
    "lends": "A: new prefix, computed and lent",
    "cold": "B: new prefix, computed and lent",
    "lent": "B: A's prefix, loaded",
    "alone": "C: the same prompt, no connector",
    "own": "C: the same prefix, in C's own memory",
}


def rounds(arguments: argparse.Namespace, engines: tuple[Process, ...]) -> Iterator[dict[str, dict[str, Any]]]:
    """Yields each round's answers."""
    a, b, c = engines
    ends = [prompt(90 + number, END) for number in range(3)]
    for number in range(arguments.rounds):
        lent, new = (prompt(1000 * kind + number, arguments.tokens) for kind in (1, 2))
        found = {"lends": a.ask([*lent, *ends[0]], count=1)}

        def alone(found: dict[str, Any] = found, lent: list[int] = lent) -> None:
            found["alone"] = c.ask([*lent, *ends[1]], count=1)
            found["own"] = c.ask([*lent, *ends[2]], count=1)

        def cold(found: dict[str, Any] = found, new: list[int] = new) -> None:
            found["cold"] = b.ask([*new, *ends[1]], count=1)

        def loaded(found: dict[str, Any] = found, lent: list[int] = lent) -> None:
            found["lent"] = b.ask([*lent, *ends[1]], count=1)

        turns = [alone, cold, loaded]
        random.Random(number).shuffle(turns)
        for turn in turns:
            turn()
        for name, engine in (("lent", b), ("alone", c)):
            found[name]["tokens"] = engine.ask([*lent, *ends[1]], count=COMPARED)["tokens"]
        print(number, {name: (round(answer["seconds"], 2), answer["cached"]) for name, answer in found.items()}, file=sys.stderr, flush=True)
        yield found


def report(found: list[dict[str, dict[str, Any]]]) -> str:
    """Returns a table in Markdown."""
    rows = []
    for name, what in ROWS.items():
        answers = [one[name] for one in found]
        cached = sorted({answer["cached"][0] for answer in answers})
        cells = [spread([answer[field] for answer in answers], 3) for field in ("seconds", "processor_s")]
        rows.append([what, *cells, ", ".join(f"{count:,}" for count in cached)])
    lines = [markdown(["prompt", "time to the first token, s", "processor time, s", "tokens from a cache"], rows)]
    for field, what in (("seconds", "time"), ("processor_s", "processor time")):
        ratios = [one["cold"][field] / one["lent"][field] for one in found]
        lines += ["", f"Cold divided by lent, {what}: {spread(ratios, 3)}, the median and the extremes of {len(found)} rounds."]
    return "\n".join(lines)


def main() -> None:
    """Prints a table, and writes JSON."""
    options = parser(__doc__, rounds=9)
    options.add_argument("--tokens", type=int, default=2000)
    options.add_argument("--transfer", type=json.loads)
    options.add_argument("--json")
    arguments = options.parse_args()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(tensorlend.embedded())
        client = stack.enter_context(broker.connect())
        transfer = arguments.transfer or vllm_engine.connector(broker.address)
        # With this gain, the end of a prompt alone does not determine the tokens, and rounding does not, either.
        model = vllm_engine.model(folder / "model", gain=2, **MODEL)
        engines = tuple(Process(model, one, folder / "log") for one in (transfer, transfer, None))
        with ending(engines, folder / "log"):
            for engine in engines:
                engine.ready().ask(prompt(1, arguments.tokens), count=1)
            found = list(rounds(arguments, engines))
        counted = vars(summary(client).counters)
    same = sum(one["lent"]["tokens"] == one["alone"]["tokens"] for one in found)
    distinct = len({tuple(one["alone"]["tokens"][0]) for one in found})
    text = report(found)
    print(machine(), "", text, "", f"{same} of {len(found)} loaded prompts gave the {COMPARED} tokens of engine C.", "", counted, sep="\n")
    facts = {"connector": transfer["kv_connector"], "model": MODEL, "prefix": arguments.tokens, "same_tokens": same, "counters": counted}
    write(arguments.json, **facts, rounds=found)
    assert distinct == len(found), "prompts with the same end and different prefixes gave the same tokens"
    assert same == len(found), "the tokens differ"


if __name__ == "__main__":
    main()
