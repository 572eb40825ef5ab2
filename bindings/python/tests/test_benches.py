"""The benchmarks next to programs of others: that they measure all contenders, at a small size. A quick check, and no result."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

BENCHES = pathlib.Path(__file__).parents[1] / "benches"


def printed(program, *arguments):
    """Returns what a benchmark prints."""
    command = [sys.executable, str(BENCHES / program), *map(str, arguments)]
    # The programs of the wheel, such as tensorlendd.
    environment = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("data", ["dicts", "arrays"])
def test_workers_receive_the_dataset(data, tmp_path):
    pytest.importorskip("msgpack", reason="msgpack is not installed")
    results = tmp_path / "results.json"
    printed("objects.py", "--data", data, "--items", 2048, "--rounds", 1, "--methods", "spawn", "--json", results)
    found = json.loads(results.read_text())["runs"]
    plain = {"dicts": "plain list", "arrays": "plain object"}[data]
    for contender in (plain, "shared"):
        (run,) = found[f"spawn, {contender}"]
        # The rate is 0 if an item is missing.
        assert run["received"] > 0 and run["rate"] > 0, run


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_ping_pong_has_the_same_lengths_for_all(tmp_path):
    text = printed("pingpong.py", "--sizes", 1, 1 << 16, "--rounds", 1, "--out", tmp_path / "pingpong")
    rows = json.loads((tmp_path / "pingpong.json").read_text())["rows"]
    assert {row["nbytes"] for row in rows} == {1, 1 << 16}
    assert len({row["contender"] for row in rows}) == (3 if "Left out: mpi4py" in text else 4), text


def test_gymnasium_measures_vector_environments(tmp_path):
    performance = pytest.importorskip("gymnasium.utils.performance", reason="gymnasium is not installed")
    if not hasattr(performance, "benchmark_vector_step"):
        pytest.skip("this version of gymnasium has no benchmark_vector_step")
    only = ["AsyncVectorEnv, shared_memory=True", "SharedVectorEnv, batch"]
    printed("vector_env.py", "--yardstick", "--rounds", 1, "--seconds", 0.1, "--only", *only, "--out", tmp_path / "steps")
    rows = json.loads((tmp_path / "steps.json").read_text())["rows"]
    assert {row["contender"] for row in rows} == set(only) and all(row["median"] > 0 for row in rows)


def test_ray_puts_and_gets(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    text = printed("ray_actors.py", "--microbenchmark", "--rounds", 1, "--seconds", 0.1, "--mib", 1)
    assert all(row in text for row in ("get calls per second", "put calls per second", "put, GB per second, 1 MB")), text
