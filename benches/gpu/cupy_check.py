"""Checks whether Python's array libraries read a tensor of another process on a device without a copy.

    python cupy_check.py [--bin FOLDER] [--out FILE]

Starts a daemon and a process that puts an array on the device, leases the array through tensorlend's wheel, and gives
it to CuPy, numba and torch. Each of them must report the lease's address and the right sum. For a library that is not
installed, the output says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COUNT = 1 << 20
CONFIG = """
[cuda]
devices = ["all"]
"""


@contextmanager
def daemon(programs: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        config, socket = Path(folder, "tensorlend.toml"), Path(folder, "socket")
        config.write_text(CONFIG)
        command = [programs / "tensorlendd", "--config", config, "--socket", socket]
        if "FAKECUDA_DIR" in os.environ:
            command.append("--allow-fake-cuda")
        process = subprocess.Popen(command)
        try:
            for _ in range(200):
                if socket.exists() or process.poll() is not None:
                    break
                time.sleep(0.05)
            if not socket.exists():
                raise RuntimeError("tensorlendd does not come up; what it said stands above")
            yield socket
        finally:
            process.terminate()
            process.wait(10)


def produce(socket: str) -> None:
    """The producer's process: it puts the array and keeps it until standard input ends."""
    import numpy
    import tensorlend

    client = tensorlend.connect(socket)
    client.put("lent", numpy.arange(COUNT, dtype=numpy.int32), device="cuda:0")
    print("lent", flush=True)
    sys.stdin.read()


def by_cupy(lease: Any) -> tuple[int, int]:
    import cupy

    array = cupy.asarray(lease)
    return array.data.ptr, int(array.astype(cupy.int64).sum())


def by_cupy_dlpack(lease: Any) -> tuple[int, int]:
    import cupy

    array = cupy.from_dlpack(lease)
    return array.data.ptr, int(array.astype(cupy.int64).sum())


def by_numba(lease: Any) -> tuple[int, int]:
    from numba import cuda

    array = cuda.as_cuda_array(lease)
    pointer = array.__cuda_array_interface__["data"][0]
    return pointer, int(array.copy_to_host().astype("int64").sum())


def by_torch(lease: Any) -> tuple[int, int]:
    import torch

    if not torch.cuda.is_available():
        raise ModuleNotFoundError("torch sees no CUDA device")
    tensor = torch.from_dlpack(lease)
    return tensor.data_ptr(), int(tensor.to(torch.int64).sum().item())


LOOKS: list[tuple[str, str, Callable[[Any], tuple[int, int]]]] = [
    ("CuPy, array interface", "cupy", by_cupy),
    ("CuPy, DLPack", "cupy", by_cupy_dlpack),
    ("numba", "numba", by_numba),
    ("torch, DLPack", "torch", by_torch),
]


def look(client: Any, module: str, by: Callable[[Any], tuple[int, int]]) -> dict[str, Any]:
    if importlib.util.find_spec(module) is None:
        return {"answer": f"not measured: {module} is not installed"}
    lease = client.get("lent")
    try:
        begin = time.monotonic_ns()
        pointer, total = by(lease)
        first = time.monotonic_ns() - begin
        begin = time.monotonic_ns()
        by(lease)
        again = time.monotonic_ns() - begin
    except ImportError as error:
        return {"answer": f"not measured: {error}"}
    except Exception as error:  # noqa: BLE001 each library has exceptions of its own
        return {"answer": f"failed: {type(error).__name__}: {error}", "failed": True}
    in_place, right = pointer == lease.ptr, total == COUNT * (COUNT - 1) // 2
    answer = f"{'in place' if in_place else 'a copy'}, the sum is {'right' if right else 'wrong'}"
    return {"answer": answer, "failed": not (in_place and right), "first_ms": first / 1e6, "again_ms": again / 1e6}


def check(programs: Path) -> list[dict[str, Any]]:
    import tensorlend

    with daemon(programs) as socket:
        command = [sys.executable, __file__, "--produce", str(socket)]
        producer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert producer.stdout is not None
            if producer.stdout.readline().strip() != "lent":
                raise RuntimeError("the producer lends nothing; what it said stands above")
            with tensorlend.connect(str(socket)) as client:
                return [{"way": way, **look(client, module, by)} for way, module, by in LOOKS]
        finally:
            producer.communicate("", timeout=20)


def missing() -> str | None:
    for module in ("numpy", "tensorlend"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    import tensorlend

    if not hasattr(tensorlend, "DeviceLease"):
        return "this tensorlend knows no tensors on devices"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, default=Path(__file__).parent.parent / "bin", help="where tensorlendd is")
    parser.add_argument("--out", type=Path, help="the answers as JSON")
    parser.add_argument("--produce", metavar="SOCKET", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.produce:
        produce(arguments.produce)
        return 0
    why = missing()
    result: dict[str, Any] = {"missing": why} if why else {"ways": check(arguments.bin)}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    if why:
        print(f"Python's array libraries: not measured: {why}")
        return 0
    print("\n| who looks | what they find | the first time | again |\n|---|---|---|---|")
    for way in result["ways"]:
        times = " | ".join(f"{way[key]:.2f} ms" if key in way else "" for key in ("first_ms", "again_ms"))
        print(f"| {way['way']} | {way['answer']} | {times} |")
    return 1 if any(way.get("failed") for way in result["ways"]) else 0


if __name__ == "__main__":
    sys.exit(main())
