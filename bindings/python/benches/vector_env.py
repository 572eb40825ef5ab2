"""Steps per second of vector environments: gymnasium's, stable-baselines3's where it is installed, and SharedVectorEnv.

    python benches/vector_env.py [--rounds 7] [--seconds 1] [--out STEM] [--only SubprocVecEnv SharedVecEnv] [--yardstick]

The environment is trivial: it writes its step's number into one array and returns this array. So the numbers are the cost of the
vector environment itself. The contenders take turns in each round. In each step the program reads a byte of every page of the
observations. With --out, writes STEM.json and STEM.md.

With --yardstick, gymnasium's own `gymnasium.utils.performance.benchmark_vector_step` measures the environments of gymnasium's interface.
It samples actions, does not touch the observations, and counts the steps of all environments.
"""

import os
import statistics
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv
from measure import PAGE, interleaved, markdown, parser, write

from tensorlend.gymnasium import SharedVectorEnv

SHAPES = ((84, 84, 4), (480, 640, 3))
COUNTS = (2, 4)


class Trivial(gymnasium.Env):
    """An environment that costs nothing but the write of one number."""

    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, shape):
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.picture = np.zeros(shape, np.uint8)
        self.at = 0

    def reset(self, *, seed=None, options=None):
        return self.picture, {}

    def step(self, action):
        self.at = (self.at + 1) % 256
        self.picture[0] = self.at
        return self.picture, 1.0, False, False, {}


class Maker:
    """A picklable function that makes an environment."""

    def __init__(self, shape):
        self.shape = shape

    def __call__(self):
        return Trivial(self.shape)


def contenders(shape, count, only, yardstick=False):
    """Vector environments by name."""
    makers = [Maker(shape)] * count
    known = {
        "AsyncVectorEnv, shared_memory=True": lambda: AsyncVectorEnv(makers, shared_memory=True),
        "AsyncVectorEnv, shared_memory=True, copy=False": lambda: AsyncVectorEnv(makers, shared_memory=True, copy=False),
        "AsyncVectorEnv, shared_memory=False": lambda: AsyncVectorEnv(makers, shared_memory=False),
        "SharedVectorEnv, batch": lambda: SharedVectorEnv(makers),
        "SharedVectorEnv, views": lambda: SharedVectorEnv(makers, observations="views"),
    }
    if yardstick:
        return {name: make() for name, make in known.items() if name in (only or known)}
    try:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        from tensorlend.sb3 import SharedVecEnv
    except ImportError:
        print("stable-baselines3 is not installed: no SubprocVecEnv")
    else:
        known["SubprocVecEnv"] = lambda: SubprocVecEnv(makers)
        known["SharedVecEnv"] = lambda: SharedVecEnv(makers)
    return {name: known[name]() for name in only or known}


def run(envs, actions, seconds):
    """Steps per second of the vector environment, for about this number of seconds."""
    steps, began = 0, time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        for _ in range(10):
            observations = envs.step(actions)[0]
            for observation in observations:
                observation.reshape(-1)[::PAGE].max()
        steps += 10
    return steps / (now - began)


def run_yardstick(envs, actions, seconds):
    """Steps per second of the single environments, by gymnasium's function."""
    from gymnasium.utils.performance import benchmark_vector_step

    return benchmark_vector_step(envs, seconds, seed=1)


def table(rows, count):
    """A Markdown table: contenders down, shapes across."""
    found = {(row["contender"], *row["shape"]): row for row in rows if row["environments"] == count}
    contenders = dict.fromkeys(contender for contender, *_ in found)
    reference = next(iter(contenders))

    def cell(contender, shape):
        row, base = found[contender, *shape], found[reference, *shape]
        return f"{row['median']:,.0f} ({row['min']:,.0f} to {row['max']:,.0f}), {row['median'] / base['median']:.2f}x"

    head = [f"{count} environments", *("x".join(map(str, shape)) for shape in SHAPES)]
    return markdown(head, [[contender, *(cell(contender, shape) for shape in SHAPES)] for contender in contenders])


def main():
    arguments = parser(__doc__, rounds=7)
    arguments.add_argument("--seconds", type=float, default=1.0)
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--only", nargs="+", help="these contenders, the reference first")
    arguments.add_argument("--yardstick", action="store_true", help="measure with gymnasium's benchmark_vector_step")
    options = arguments.parse_args()
    rate = run_yardstick if options.yardstick else run
    rows = []
    for shape in SHAPES:
        for count in COUNTS:
            made = contenders(shape, count, options.only, options.yardstick)
            actions = np.zeros(count, np.int64)
            for envs in made.values():
                envs.reset()
                rate(envs, actions, options.seconds / 4)
            rates = interleaved(made, options.rounds, lambda name: rate(made[name], actions, options.seconds), warm=0)
            for name, envs in made.items():
                envs.close()
                found = {"median": statistics.median(rates[name]), "min": min(rates[name]), "max": max(rates[name])}
                rows.append({"shape": list(shape), "environments": count, "contender": name, **found, "rounds": options.rounds})
                print(rows[-1], flush=True)
    tables = "\n\n".join(table(rows, count) for count in COUNTS)
    print(tables)
    if options.out:
        versions = {"gymnasium": gymnasium.__version__, "numpy": np.__version__, "load": os.getloadavg()}
        write(options.out.with_suffix(".json"), **versions, rows=rows)
        options.out.with_suffix(".md").write_text(tables + "\n")


if __name__ == "__main__":
    main()
