"""Kills an engine in the middle of a kernel, and then the daemon, and measures when the weights are served again.

    python engine.py [--bin FOLDER] [--bytes N] [--tensors N] [--out FILE]

The engine is a toy that uses the driver API alone: it creates weights in lent device memory, fills them with a kernel, publishes
them, and then runs a kernel that does not end. This program kills the engine with SIGKILL and starts the next one at once. The
next engine leases the weights, reads all of them with a kernel, and checks the result. Then this program kills the daemon, starts
another one with the descriptors that the first one had stored, as a service manager does, and measures the same again.

Without --bytes the weights have 100 GiB, or less on a smaller device.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GIB = 1 << 30
WANTED_BYTES = 100 * GIB
BLOCK = 256
GRID_MAX = 132 * 8
#: The kernel at work when the engine is killed ends by itself after this time, if nothing else ends it.
SPIN_NS = 60 * 10**9
PATIENCE_S = 120
KERNELS = Path(__file__).parent / "kernels.ptx"


class Driver:
    """The few calls of the driver that the engine makes, in the primary context of the first device."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.ask("cuInit", 0)

    def ask(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver, and raises its error."""
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()} ({status})")

    def total_bytes(self) -> int:
        """Returns the memory of the first device, without a context."""
        total = ctypes.c_size_t()
        self.ask("cuDeviceTotalMem_v2", ctypes.byref(total), 0)
        return total.value

    def open(self) -> None:
        """Makes the primary context current, loads the kernels, and creates a stream."""
        self._context, module, self.stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.ask("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)
        self.ask("cuCtxSetCurrent", self._context)
        kernels = KERNELS if KERNELS.exists() else Path(__file__).parents[2] / "tests" / "fakecuda" / "kernels.ptx"
        self.ask("cuModuleLoadData", ctypes.byref(module), kernels.read_bytes() + b"\0")
        self._module = module
        self.ask("cuStreamCreate", ctypes.byref(self.stream), 1)

    def launch(self, kernel: str, count: int, *arguments: Any) -> None:
        """Queues a kernel for this many elements."""
        function = ctypes.c_void_p()
        self.ask("cuModuleGetFunction", ctypes.byref(function), self._module, kernel.encode())
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        grid = min(max(-(-count // BLOCK), 1), GRID_MAX)
        self.ask("cuLaunchKernel", function, grid, 1, 1, BLOCK, 1, 1, 0, self.stream, pointers, None)

    def wait(self) -> None:
        self.ask("cuStreamSynchronize", self.stream)

    def elements(self, at: int, count: int) -> list[int]:
        """Returns 32-bit elements from the device."""
        found = array.array("I", bytes(4 * count))
        where, _ = found.buffer_info()
        self.ask("cuMemcpyDtoH_v2", ctypes.c_void_p(where), ctypes.c_uint64(at), ctypes.c_size_t(4 * count))
        return found.tolist()


def value_of(number: int) -> int:
    return (number * 2654435761 + 12345) % (1 << 30)


def load(address: str, tensors: int, count: int) -> None:
    """The first engine: it publishes the weights, and is killed while its kernel runs."""
    import tensorlend

    driver = Driver()
    driver.open()
    client = tensorlend.connect(address, label="engine")
    begin = time.monotonic()
    for number in range(tensors):
        draft = client.create((count,), "uint32", device="cuda:0", stream=driver.stream.value)
        to, elements, value = ctypes.c_uint64(draft.ptr), ctypes.c_uint64(count), ctypes.c_uint32(value_of(number))
        driver.launch("tl_fill_u32", count, to, elements, value)
        draft.publish(f"weights/{number}")
    print(f"loaded {time.monotonic() - begin}", flush=True)
    scratch = client.create((count,), "uint32", device="cuda:0", stream=driver.stream.value)
    to, elements = ctypes.c_uint64(scratch.ptr), ctypes.c_uint64(count)
    driver.launch("tl_spin_fill_u32", count, to, elements, ctypes.c_uint32(7), ctypes.c_uint64(SPIN_NS))
    print("working", flush=True)
    driver.wait()


def serve(address: str, tensors: int, count: int) -> None:
    """The next engine: it reads all weights with a kernel, now and whenever its parent asks, and checks the result."""
    begin = time.monotonic()
    import tensorlend

    driver = Driver()
    driver.open()
    started = time.monotonic()
    client = tensorlend.connect(address, label="engine")
    leases = [client.get(f"weights/{number}") for number in range(tensors)]
    out = client.create((count,), "uint32", device="cuda:0", stream=driver.stream.value)
    mapped = time.monotonic()
    first: dict[str, float] | None = {"start_s": started - begin, "map_s": mapped - started}
    while True:
        began = time.monotonic()
        for number, lease in enumerate(leases):
            to, source = ctypes.c_uint64(out.ptr), ctypes.c_uint64(lease.ptr)
            driver.launch("tl_add_i32", count, to, source, source, ctypes.c_uint64(count))
            driver.wait()
            wanted, last = [2 * value_of(number)] * 16, min(16, count)
            for at in (0, count // 2, count - last):
                found = driver.elements(out.ptr + 4 * at, last)
                if found != wanted[: len(found)]:
                    raise AssertionError(f"weights/{number} holds other bytes: {found[:4]}, not {wanted[:4]}")
        print(json.dumps({**(first or {}), "read_s": time.monotonic() - began}), flush=True)
        first = None
        if not sys.stdin.readline():
            return


class Store:
    """The service manager's part: it stores the daemon's descriptors, and passes them to the next daemon."""

    def __init__(self, path: Path) -> None:
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.bind(str(path))
        self._lock = threading.Condition()
        self._kept: list[tuple[str, int]] = []
        self._heard = 0
        self.path = path
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            text, descriptors, _, _ = socket.recv_fds(self._inbox, 65536, 16)
            fields = dict(line.split("=", 1) for line in text.decode().splitlines() if "=" in line)
            with self._lock:
                name = fields.get("FDNAME", "")
                if fields.get("FDSTORE") == "1":
                    self._kept += [(name, fd) for fd in descriptors]
                elif fields.get("FDSTOREREMOVE") == "1":
                    for other, fd in self._kept:
                        if other == name:
                            os.close(fd)
                    self._kept = [pair for pair in self._kept if pair[0] != name]
                elif "MARK" in fields:
                    self._heard = int(fields["MARK"])
                    self._lock.notify_all()

    def kept(self) -> list[tuple[str, int]]:
        """Returns the stored descriptors, after all messages that were sent before."""
        mark = self._heard + 1
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(f"MARK={mark}".encode(), str(self.path))
        with self._lock:
            self._lock.wait_for(lambda: self._heard >= mark, PATIENCE_S)
            return list(self._kept)


class Daemon:
    """A daemon that can be killed and started again."""

    def __init__(self, program: list[str], folder: Path, config: str) -> None:
        (folder / "tensorlendd.toml").write_text(config)
        self.socket, self._folder, self._program = folder / "socket", folder, program
        self._store = Store(folder / "notify")
        self.start()

    def start(self) -> None:
        kept = self._store.kept()
        command = ["/bin/sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", *self._program]
        command += ["--config", str(self._folder / "tensorlendd.toml"), "--socket", str(self.socket)]
        if "FAKECUDA_DIR" in os.environ:
            command.append("--allow-fake-cuda")
        environment = {**os.environ, "NOTIFY_SOCKET": str(self._store.path)}
        if kept:
            environment |= {"LISTEN_FDS": str(len(kept)), "LISTEN_FDNAMES": ":".join(name for name, _ in kept)}
        # The descriptors must have the numbers from 3 on, so copies above these numbers are made first.
        copies = [os.dup(fd) for _, fd in kept]
        while copies and min(copies) < 3 + len(copies):
            copies = [os.dup(fd) for fd in copies]

        def place() -> None:
            for number, fd in enumerate(copies):
                os.dup2(fd, 3 + number)

        log = open(self._folder / "log", "ab")
        self._process = subprocess.Popen(
            command, env=environment, preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL, stderr=log
        )
        for fd in copies:
            os.close(fd)
        until = time.monotonic() + PATIENCE_S
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                if probe.connect_ex(str(self.socket)) == 0:
                    return
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("tensorlendd does not come up:\n" + (self._folder / "log").read_text()[-2000:])
            time.sleep(0.002)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)


class Engine:
    """A process of this program."""

    def __init__(self, role: str, address: Path, tensors: int, count: int) -> None:
        self.began = time.monotonic()
        command = [sys.executable, __file__, "--role", role, "--address", str(address)]
        command += ["--tensors", str(tensors), "--count", str(count)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"an engine has ended: exit status {self.process.wait(PATIENCE_S)}")
        return line.strip()

    def again(self) -> dict[str, float]:
        """Lets a serving engine read the weights once more."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.line())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)


@contextmanager
def ended(engine: Engine) -> Iterator[Engine]:
    try:
        yield engine
    finally:
        if engine.process.poll() is None:
            engine.kill()


def measure(program: list[str], wanted: int, tensors: int) -> dict[str, Any]:
    total = Driver().total_bytes()
    nbytes = min(wanted, int(total * 0.85))
    count = max(nbytes // tensors // 4, 16)
    # Room for the weights, for the engines' own tensors, and for the rounding to units of 2 MiB.
    room = min(total, (tensors + 4) * (count * 4 + (4 << 20)))
    mode = "system" if os.environ.get("TENSORLEND_ENGINE_MODE") == "system" else "user"
    config = f'mode = "{mode}"\n[cuda]\ndevices = ["all"]\nsegment_bytes = "4MiB"\nbytes_max = {room}\n'
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tensorlend-engine-") as folder:
        daemon = Daemon(program, Path(folder), config)
        try:
            with ended(Engine("load", daemon.socket, tensors, count)) as first:
                load_s = float(first.line().split()[1])
                assert first.line() == "working"
                first.kill()
            with ended(Engine("serve", daemon.socket, tensors, count)) as second:
                row = {"event": "the engine was killed while its kernel ran", **json.loads(second.line())}
                rows.append({**row, "whole_s": time.monotonic() - second.began})
                daemon.kill()
                began = time.monotonic()
                daemon.start()
                up_s = time.monotonic() - began
                with ended(Engine("serve", daemon.socket, tensors, count)) as third:
                    row = {"event": "the daemon was killed, too", **json.loads(third.line())}
                    rows.append({**row, "daemon_s": up_s, "whole_s": time.monotonic() - began})
                rows.append({"event": "an engine that lived through it reads on", **second.again()})
        finally:
            daemon.stop()
    return {"bytes": tensors * count * 4, "tensors": tensors, "load_s": load_s, "rows": rows}


def missing() -> str | None:
    if importlib.util.find_spec("tensorlend") is None:
        return "tensorlend is not installed"
    try:
        Driver().total_bytes()
    except (OSError, RuntimeError) as error:
        return f"there is no device: {error}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, default=Path(__file__).parent.parent / "bin", help="where tensorlendd is")
    parser.add_argument("--bytes", type=int, default=WANTED_BYTES, help="bytes of the weights")
    parser.add_argument("--tensors", type=int, default=100, help="tensors of the weights")
    parser.add_argument("--out", type=Path, help="the figures as JSON")
    parser.add_argument("--role", choices=("load", "serve"), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        {"load": load, "serve": serve}[arguments.role](arguments.address, arguments.tensors, arguments.count)
        return 0
    why = missing()
    own = arguments.bin / "tensorlendd"
    # Without the packed programs, the wheel's own daemon.
    program = [str(own)] if own.exists() else [sys.executable, "-c", "from tensorlend._programs import daemon; daemon()"]
    result: dict[str, Any] = {"missing": why} if why else measure(program, arguments.bytes, arguments.tensors)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    if why:
        print(f"A killed engine: not measured: {why}")
        return 0
    print(f"\n{result['bytes'] / GIB:.2f} GiB of weights in {result['tensors']} tensors, loaded in {result['load_s']:.2f} s.\n")
    print("| what happened | served again after | daemon up | engine started | weights mapped | read and checked |")
    print("|---|---|---|---|---|---|")
    for row in result["rows"]:
        keys = ("whole_s", "daemon_s", "start_s", "map_s", "read_s")
        print(f"| {row['event']} | " + " | ".join(f"{row[key]:.3f} s" if key in row else "" for key in keys) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
