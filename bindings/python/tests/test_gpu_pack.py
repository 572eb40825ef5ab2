"""The Python programs of benches/gpu on the stand-in for the driver: that they work, at a small size."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

from cards import World

PROGRAMS = pathlib.Path(__file__).parents[3] / "benches" / "gpu"


def run(world: World, program: str, *arguments: str) -> dict:
    if not (PROGRAMS / program).is_file():
        pytest.skip(f"{program} is not here: the tests run without the sources")
    out = world.folder / "out.json"
    command = [sys.executable, str(PROGRAMS / program), "--out", str(out), *arguments]
    done = subprocess.run(command, env=world.env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(out.read_text())


@pytest.mark.parametrize("mode", ["user", "system"])
def test_weights_outlive_a_killed_engine_and_a_killed_daemon(tmp_path, mode):
    world = World(tmp_path, TENSORLEND_ENGINE_MODE=mode)
    found = run(world, "engine.py", "--bytes", str(2 << 20), "--tensors", "4")
    assert (found["bytes"], found["tensors"]) == (2 << 20, 4)
    # The program itself has compared the elements; it measures, and no test asserts a time.
    killed, restarted, lived = found["rows"]
    assert killed["whole_s"] > 0 and restarted["daemon_s"] > 0 and "whole_s" not in lived


def test_arrays_between_processes(tmp_path):
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed (bindings/python/tests/requirements-device.txt)")
    found = run(World(tmp_path), "arrays.py", "--quick")
    assert found["failed"] == []
    # torch, CuPy and jax need the CUDA runtime, which does not start on the fake driver: the report gives the reason.
    assert set(found["left_out"]) == {"torch", "CuPy", "jax"} and all(found["left_out"].values())
    measured = {(figure["library"], figure["way"]) for figure in found["figures"]}
    assert measured == {("numba", "lent"), ("numba", "put")}
