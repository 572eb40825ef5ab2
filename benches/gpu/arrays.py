"""Measures how Python's array libraries hand an array on a device to another process: by tensorlend, as users write it, and by
torch.multiprocessing.

    python arrays.py [--bin FOLDER] [--quick] [--out FILE]

Each round is as in `cargo bench --bench handover`. The producer fills an array on the device and hands it over. The consumer adds
the array to itself into a buffer of its own, copies the last element to the host, and answers through a pipe. The ways take turns:

* `queue`: a new tensor through a queue of torch.multiprocessing, which sends a CUDA IPC handle.
* `same tensor`: the same, with one tensor that the producer fills again.
* `lent`: the producer fills a draft of tensorlend in place and publishes it; the consumer leases it.
* `put`: the producer makes an array of its own and puts it, which copies it once on the device.

Figures are medians of a round, from before the producer makes the array until it has the answer. The output
names each library that is not installed or sees no device.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SIZES = [1 << 10, 1 << 20, 16 << 20, 256 << 20]
QUICK_SIZES = [1 << 10, 1 << 20]
#: Rounds before the measured ones: they allocate memory and open handles.
WARM = 5


class Torch:
    """torch: drafts and leases as tensors."""

    ways = ("queue", "same tensor", "lent", "put")

    def __init__(self) -> None:
        import torch

        self.torch = torch
        if not torch.cuda.is_available():
            raise ModuleNotFoundError(f"torch {torch.__version__} sees no CUDA device")
        self.version, self._out = f"torch {torch.__version__} (CUDA {torch.version.cuda})", None

    def full(self, elements: int, number: int) -> Any:
        tensor = self.torch.full((elements,), number, dtype=self.torch.int32, device="cuda:0")
        self.torch.cuda.current_stream().synchronize()
        return tensor

    def refill(self, tensor: Any, number: int) -> Any:
        tensor.fill_(number)
        self.torch.cuda.current_stream().synchronize()
        return tensor

    def fill(self, draft: Any, number: int) -> None:
        draft.torch().fill_(number)

    def view(self, lease: Any) -> Any:
        return lease.torch()

    def double_last(self, tensor: Any) -> int:
        if self._out is None or self._out.numel() < tensor.numel():
            self._out = self.torch.empty(tensor.numel(), dtype=self.torch.int32, device="cuda:0")
        into = self._out[: tensor.numel()]
        self.torch.add(tensor, tensor, out=into)
        return int(into[-1].item())


class Cupy:
    """CuPy: drafts and leases as arrays."""

    ways = ("lent", "put")

    def __init__(self) -> None:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
        self.cupy, self.version = cupy, f"CuPy {cupy.__version__}"

    def full(self, elements: int, number: int) -> Any:
        return self.cupy.full(elements, number, dtype="int32")

    def fill(self, draft: Any, number: int) -> None:
        self.cupy.asarray(draft).fill(number)

    def view(self, lease: Any) -> Any:
        return self.cupy.asarray(lease)

    def double_last(self, view: Any) -> int:
        return int((view + view)[-1])


class Jax:
    """jax: leases as arrays. jax writes into no memory of others, so it has no way `lent`. jax's `from_dlpack` asks for
    tensors without the read-only flag, so leases are read through the CUDA array interface."""

    ways = ("put",)

    def __init__(self) -> None:
        import jax

        if not any(device.platform == "gpu" for device in jax.devices()):
            raise ModuleNotFoundError(f"jax {jax.__version__} sees no CUDA device")
        self.jax, self.version = jax, f"jax {jax.__version__}"

    def full(self, elements: int, number: int) -> Any:
        return self.jax.numpy.full(elements, number, dtype="int32").block_until_ready()

    def view(self, lease: Any) -> Any:
        return self.jax.numpy.asarray(lease)

    def double_last(self, view: Any) -> int:
        return int((view + view)[-1])


class Numba:
    """numba-cuda without kernels: it copies from and to the host, so that the stand-in for the driver can run it."""

    ways = ("lent", "put")

    def __init__(self) -> None:
        import numpy
        from numba import __version__, cuda

        cuda.current_context()
        self.numpy, self.cuda, self.version = numpy, cuda, f"numba {__version__}"

    def full(self, elements: int, number: int) -> Any:
        return self.cuda.to_device(self.numpy.full(elements, number, "int32"))

    def fill(self, draft: Any, number: int) -> None:
        self.cuda.as_cuda_array(draft).copy_to_device(self.numpy.full(draft.shape, number, "int32"))

    def view(self, lease: Any) -> Any:
        return self.cuda.as_cuda_array(lease)

    def double_last(self, view: Any) -> int:
        return 2 * int(view[-1:].copy_to_host()[0])


LIBRARIES: dict[str, tuple[str, Callable[[], Any]]] = {
    "torch": ("torch", Torch),
    "CuPy": ("cupy", Cupy),
    "jax": ("jax", Jax),
    "numba": ("numba", Numba),
}


@contextmanager
def daemon(programs: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tensorlend-arrays-") as folder:
        config, socket = Path(folder, "tensorlend.toml"), Path(folder, "socket")
        config.write_text('mode = "user"\n[cuda]\ndevices = ["all"]\n')
        own = programs / "tensorlendd"
        # Without the packed programs, the wheel's own daemon.
        program = [str(own)] if own.exists() else [sys.executable, "-c", "from tensorlend._programs import daemon; daemon()"]
        command = [*program, "--config", str(config), "--socket", str(socket)]
        if "FAKECUDA_DIR" in os.environ:
            command.append("--allow-fake-cuda")
        process = subprocess.Popen(command)
        try:
            until = time.monotonic() + 60
            while not socket.exists() and process.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            if not socket.exists():
                raise RuntimeError("tensorlendd does not come up; what it said stands above")
            yield str(socket)
        finally:
            process.terminate()
            process.wait(10)


def consume(library: str, address: str, tensors: Any, answers: Any) -> None:
    """The consumer's process: it answers for each array, until the producer says the end."""
    import tensorlend

    arrays, client, seen = LIBRARIES[library][1](), tensorlend.connect(address), None
    answers.send("ready")
    while (way := answers.recv()) != "end":
        if way in ("queue", "same tensor"):
            held = view = tensors.get()
        else:
            held = client.wait_newer(library, seen, timeout=60)
            seen, view = held.version, arrays.view(held)
        got = time.monotonic_ns()
        last = arrays.double_last(view)
        done = time.monotonic_ns()
        # Torch's producer gets its memory back when the consumer drops the last reference; so does tensorlend's.
        del held, view
        answers.send((last, got, done))


class Producer:
    """The producer, and its consumer."""

    def __init__(self, library: str, address: str) -> None:
        import multiprocessing

        import tensorlend

        if library == "torch":
            import torch.multiprocessing as multiprocessing  # type: ignore[no-redef]
        # Each library has a name of its own: a name keeps its last value.
        self.library, self.arrays, self.client = library, LIBRARIES[library][1](), tensorlend.connect(address)
        context = multiprocessing.get_context("spawn")
        self.tensors = context.Queue() if library == "torch" else None
        self.answers, theirs = context.Pipe()
        self.consumer = context.Process(target=consume, args=(library, address, self.tensors, theirs), daemon=True)
        self.consumer.start()
        theirs.close()
        if not self.answers.poll(120):
            raise TimeoutError("the consumer does not come up")
        self.answers.recv()

    def round(self, way: str, number: int, elements: int, kept: Any) -> dict[str, int]:
        self.answers.send(way)
        begin = time.monotonic_ns()
        if way == "queue":
            self.tensors.put(self.arrays.full(elements, number))
        elif way == "same tensor":
            self.tensors.put(self.arrays.refill(kept, number))
        elif way == "lent":
            draft = self.client.create((elements,), "int32", device="cuda:0")
            self.arrays.fill(draft, number)
            draft.publish(self.library)
        else:
            self.client.put(self.library, self.arrays.full(elements, number))
        published = time.monotonic_ns()
        if not self.answers.poll(60):
            raise TimeoutError("the consumer does not answer")
        last, got, done = self.answers.recv()
        seen = time.monotonic_ns()
        if last != 2 * number:
            raise AssertionError(f"the consumer read another number: {last} instead of {2 * number}")
        return {"begin": begin, "published": published, "got": got, "done": done, "seen": seen}

    def close(self) -> None:
        self.answers.send("end")
        self.consumer.join(20)
        self.client.close()


def summary(rounds: list[dict[str, int]]) -> dict[str, float]:
    whole = [r["seen"] - r["begin"] for r in rounds]
    return {
        "p50_ns": statistics.median(whole),
        "min_ns": min(whole),
        "max_ns": max(whole),
        "made_ns": statistics.median(r["published"] - r["begin"] for r in rounds),
        "to_lease_ns": statistics.median(max(r["got"] - r["published"], 0) for r in rounds),
        "read_ns": statistics.median(r["done"] - r["got"] for r in rounds),
        "rounds": len(rounds),
    }


def measure(library: str, address: str, quick: bool) -> list[dict[str, Any]]:
    producer, figures, number = Producer(library, address), [], 0
    try:
        for nbytes in QUICK_SIZES if quick else SIZES:
            rounds = 5 if quick else 40 if nbytes > 64 << 20 else 200
            elements, ways = nbytes // 4, producer.arrays.ways
            kept = producer.arrays.full(elements, 0) if "same tensor" in ways else None
            found: dict[str, list[dict[str, int]]] = {way: [] for way in ways}
            for _ in range(rounds + WARM):
                for way in ways:
                    number += 1
                    found[way].append(producer.round(way, number, elements, kept))
            for way, them in found.items():
                first = {"first_ns": them[0]["seen"] - them[0]["begin"]}
                figures.append({"library": library, "bytes": nbytes, "way": way, **first, **summary(them[WARM:])})
    finally:
        producer.close()
    return figures


def all_libraries(programs: Path, quick: bool) -> dict[str, Any]:
    answers: dict[str, Any] = {"versions": {}, "left_out": {}, "figures": [], "failed": []}
    with daemon(programs) as address:
        for library, (module, make) in LIBRARIES.items():
            if importlib.util.find_spec(module) is None:
                answers["left_out"][library] = f"{module} is not installed"
                continue
            try:
                answers["versions"][library] = make().version
            except Exception as error:  # noqa: BLE001 each library has exceptions of its own
                answers["left_out"][library] = f"{type(error).__name__}: {error}"
                continue
            try:
                answers["figures"] += measure(library, address, quick)
            except Exception as error:  # noqa: BLE001 the other libraries are measured all the same
                answers["failed"].append(f"{library}: {type(error).__name__}: {error}")
    return answers


def time_of(ns: float) -> str:
    for unit, limit in (("ns", 1e3), ("us", 1e6), ("ms", 1e9)):
        if abs(ns) < limit:
            return f"{ns / (limit / 1e3):.3g} {unit}"
    return f"{ns / 1e9:.3g} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, default=Path(__file__).parent.parent / "bin", help="where tensorlendd is")
    parser.add_argument("--quick", action="store_true", help="few rounds of few sizes")
    parser.add_argument("--out", type=Path, help="the figures as JSON")
    arguments = parser.parse_args()
    why = None if importlib.util.find_spec("tensorlend") else "tensorlend is not installed"
    result: dict[str, Any] = {"missing": why} if why else all_libraries(arguments.bin, arguments.quick)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    if why:
        print(f"Arrays between processes: not measured: {why}")
        return 0
    for library, reason in result["left_out"].items():
        print(f"- {library}: not measured: {reason}")
    for failure in result["failed"]:
        print(f"- **{failure}**")
    print(f"\nMeasured: {', '.join(result['versions'].values()) or 'nothing'}\n")
    print("| library | bytes | way | round: median (least .. most) | made and handed over | to the consumer | read | the first |")
    print("|---|---|---|---|---|---|---|---|")
    for f in result["figures"]:
        nbytes = f"{f['bytes'] >> 20} MiB" if f["bytes"] >= 1 << 20 else f"{f['bytes'] >> 10} KiB"
        spread = f"{time_of(f['p50_ns'])} ({time_of(f['min_ns'])} .. {time_of(f['max_ns'])})"
        parts = " | ".join(time_of(f[key]) for key in ("made_ns", "to_lease_ns", "read_ns", "first_ns"))
        print(f"| {f['library']} | {nbytes} | {f['way']} | {spread} | {parts} |")
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
