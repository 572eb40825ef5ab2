"""Time to the first token of an engine of vLLM on the CPU: prompts that nobody has computed, and prompts that another engine has lent.

python benches/vllm_ttft.py [--tokens N] [--rounds N] [--json FILE]

Engine A computes a prompt for each round and is killed. Engine B then computes a new prompt and one of A's prompts in turns. Engine C has no
connector, and computes the same prompts; the first tokens of B and C must be the same. Of one prompt, 32 tokens of each are printed. The model has 12 layers, a width of 1024, and random weights.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from measure import machine

import tensorlend
from tensorlend.kvcache import summary

TESTS = pathlib.Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))
import vllm_engine

MODEL = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4}


class Engine:
    """An engine in a process of its own."""

    def __init__(self, model: pathlib.Path, socket: str | None) -> None:
        command = [sys.executable, vllm_engine.__file__, str(model), *([socket] if socket else [])]
        environment = vllm_engine.environment()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n"

    def first_token(self, prompt: list[int], count: int = 1) -> dict[str, Any]:
        """Generates some tokens."""
        print(json.dumps([[prompt], count]), file=self.process.stdin, flush=True)
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def kill(self) -> None:
        """Kills the process."""
        self.process.kill()
        self.process.wait()


def main() -> None:
    """Prints the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rounds = range(arguments.rounds)
    lent, new, warm = ([vllm_engine.prompt(kind * 1000 + number, arguments.tokens) for number in rounds] for kind in range(1, 4))
    tails = [vllm_engine.prompt(5000 + number, 16) for number in rounds]
    found: dict[str, list[dict[str, Any]]] = {"A, saves": [], "B, computes and saves": [], "B, loads": [], "C, no connector": []}
    with tempfile.TemporaryDirectory() as folder, tensorlend.embedded() as broker, broker.connect() as client:
        model = vllm_engine.model(pathlib.Path(folder) / "model", **MODEL)
        engine = Engine(model, broker.address)
        engine.first_token(warm[0])
        found["A, saves"] = [engine.first_token(prompt) for prompt in lent]
        engine.kill()
        engine = Engine(model, broker.address)
        engine.first_token(warm[1])
        for number in rounds:
            found["B, computes and saves"].append(engine.first_token(new[number]))
            found["B, loads"].append(engine.first_token([*lent[number], *tails[number]]))
            assert found["B, loads"][-1]["cached"][0] > 0.9 * arguments.tokens, "the prompt was not lent"
        tokens = engine.first_token([*lent[0], *tails[0], 7], 32)["tokens"]
        engine.kill()
        total = summary(client)
        engine = Engine(model, None)
        engine.first_token(warm[0])
        found["C, no connector"] = [engine.first_token([*lent[number], *tails[number]]) for number in rounds]
        same = [one["tokens"] for one in found["B, loads"]] == [one["tokens"] for one in found["C, no connector"]]
        print("B", tokens, "\nC", engine.first_token([*lent[0], *tails[0], 7], 32)["tokens"])
        engine.kill()
        assert same, "the first tokens differ"
    print(machine())
    for what, answers in found.items():
        print(f"{what:<24}", *(f"{name} {statistics.median(of):.3f} ({min(of):.3f} to {max(of):.3f})" for name, of in times(answers)), answers[-1]["cached"])
    print(total)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"machine": machine(), "model": MODEL, "tokens": arguments.tokens, "answers": found, "summary": str(total)}, file, indent=1)


def times(answers: list[dict[str, Any]]) -> list[tuple[str, list[float]]]:
    """The times of some answers."""
    return [(name, [answer[name] for answer in answers]) for name in ("seconds", "processor_s")]


if __name__ == "__main__":
    main()
