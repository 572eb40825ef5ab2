"""Common parts of the benchmarks: arguments, contenders that take turns, other processes, servers, memory, medians with their
extremes, and reports.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

_T = TypeVar("_T")
_Key = TypeVar("_Key", bound=Hashable)

#: Length of a page. A benchmark reads one byte of each page, as a program that uses a tensor touches it.
PAGE = 4096


def parser(doc: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """Returns a parser of arguments, with `--rounds` if it has a default."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds is not None:
        made.add_argument("--rounds", type=int, default=rounds)
    return made


def interleaved(contenders: Iterable[_Key], rounds: int, once: Callable[[_Key], Any], warm: int = 1) -> dict[_Key, list[Any]]:
    """Measures contenders in turns, so that a busy machine affects all of them. Returns the results of each, without those of the first
    `warm` rounds.
    """
    found: dict[_Key, list[Any]] = {contender: [] for contender in contenders}
    for number in range(rounds + warm):
        for contender, results in found.items():
            result = once(contender)
            if number >= warm:
                results.append(result)
    return found


def seconds(work: Callable[[], object]) -> float:
    """Returns the time that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def spread(values: Iterable[float], digits: int = 2, unit: float = 1) -> str:
    """Returns the median with its extremes, each times `unit`."""
    values = [value * unit for value in values]
    middle, least, most = (f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})"


def markdown(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Returns a table. All columns but the first are numbers."""
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, cells))} |" for cells in rows)])


@dataclass
class Row:
    """A measurement in microseconds, of a number of rounds."""

    what: str
    contender: str
    nbytes: int
    median_us: float
    min_us: float
    max_us: float
    rounds: int


def row(what: str, contender: str, nbytes: int, seconds: list[float]) -> Row:
    """Returns the median with its extremes."""
    us = [s * 1e6 for s in seconds]
    return Row(what, contender, nbytes, statistics.median(us), min(us), max(us), len(us))


def machine() -> dict[str, str]:
    """Returns a description of the machine."""
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return {
        "machine": f"{model}, {os.cpu_count()} cores, Linux {platform.release()}",
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def described(*more: str) -> str:
    """Returns the machine and its load in words, and more."""
    facts = machine()
    return ", ".join([facts["machine"], f"Python {facts['python']}", *more, f"load average {os.getloadavg()[0]:.1f}"])


def write(path: str | Path | None, **facts: Any) -> None:
    """Writes results with the machine's description as JSON, if there is a path."""
    if path is not None:
        Path(path).write_text(json.dumps({**machine(), **facts}, indent=1) + "\n")


def size(nbytes: int) -> str:
    """Returns a length in words."""
    for unit, factor in (("MB", 1 << 20), ("KB", 1 << 10)):
        if nbytes >= factor and nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes:,} B"


def duration(us: float) -> str:
    """Returns microseconds in words."""
    if us < 1000:
        return f"{us:.3g} us"
    return f"{us / 1000:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def table(rows: Iterable[Row], reference: str, columns: Callable[[int], str] = size) -> str:
    """Returns a Markdown table for each measurement: contenders down, sizes across; each median with its ratio to the reference."""
    rows = list(rows)
    parts = []
    for what in dict.fromkeys(r.what for r in rows):
        found = {(r.contender, r.nbytes): r for r in rows if r.what == what}
        sizes = list(dict.fromkeys(nbytes for _, nbytes in found))

        def cell(contender: str, nbytes: int, found: dict[tuple[str, int], Row] = found) -> str:
            r, base = found.get((contender, nbytes)), found.get((reference, nbytes))
            if r is None:
                return ""
            ratio = f" ({r.median_us / base.median_us:.2f}x)" if base and contender != reference else ""
            return f"{duration(r.median_us)}{ratio}<br>{duration(r.min_us)} to {duration(r.max_us)}"

        contenders = dict.fromkeys(contender for contender, _ in found)
        lines = ([contender, *(cell(contender, nbytes) for nbytes in sizes)] for contender in contenders)
        parts.append(f"### {what}\n\n{markdown(['contender', *map(columns, sizes)], lines)}")
    return "\n\n".join(parts)


def save(
    stem: Path,
    title: str,
    rows: list[Row],
    reference: str,
    notes: Iterable[str],
    *,
    columns: Callable[[int], str] = size,
) -> None:
    """Writes stem.json and stem.md. The columns need not be bytes: `columns` words them."""
    facts = machine()
    write(stem.with_suffix(".json"), rows=[asdict(r) for r in rows])
    head = f"# {title}\n\n{facts['machine']}, Python {facts['python']}, {facts['date']}. Medians of one run, the contenders in turns; below\neach the extremes; in brackets the ratio to: {reference}."
    text = "\n\n".join([head, table(rows, reference, columns), *notes])
    stem.with_suffix(".md").write_text(text + "\n")
    print(text)


def left_out(missing: dict[str, str]) -> list[str]:
    """Returns notes about the contenders that could not take part, with the reasons."""
    return [f"Left out: {name} ({why.splitlines()[0] if why else 'not installed'})." for name, why in missing.items()]


def _in_child(work: Callable[[], object]) -> NoReturn:
    """Ends a forked child after its work."""
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


class Peer:
    """Another process, which works at each byte of a socket, and responds with a byte."""

    def __init__(self, work: Callable[[], Callable[[], None]]) -> None:
        """Calls `work` in the child. It returns the function that the child calls at each byte."""
        self.socket, other = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self.socket.close()
            _in_child(lambda: self._serve(other, work()))
        other.close()
        self.socket.settimeout(120)
        self.wait()

    @staticmethod
    def _serve(end: socket.socket, once: Callable[[], None]) -> None:
        end.send(b"r")
        while end.recv(1) == b"g":
            once()
            end.send(b"d")

    def go(self) -> None:
        """Begins a piece of work."""
        self.socket.send(b"g")

    def wait(self) -> None:
        """Waits for the end of the work."""
        if not self.socket.recv(1):
            raise RuntimeError("the other process has failed")

    def close(self) -> None:
        """Ends the process by a byte. Other children hold copies of this end, so closing it would not end the process."""
        self.socket.send(b"q")
        self.socket.close()
        os.waitpid(self.pid, 0)


def together(count: int, work: Callable[[int], Callable[[], _T]]) -> list[_T]:
    """Returns the results of processes that begin at the same time. `work` makes each ready, and returns the call that is measured."""
    start, begin = os.pipe()
    ends, pids = [], []

    def child(number: int, writer: int) -> None:
        os.close(begin)
        once = work(number)
        os.write(writer, b"r")
        os.read(start, 1)
        with open(writer, "wb") as pipe:
            pickle.dump(once(), pipe)

    for number in range(count):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _in_child(lambda number=number, writer=writer: child(number, writer))
        os.close(writer)
        pids.append(pid)
        ends.append(open(reader, "rb"))
    for end in ends:
        assert end.read(1) == b"r", "a client has failed"
    os.close(start)
    os.close(begin)
    found = []
    for end in ends:
        with end:
            found.append(pickle.load(end))
    for pid in pids:
        os.waitpid(pid, 0)
    return found


def again(program: str, *arguments: object, timeout: float = 3000) -> Any:
    """Runs a benchmark in a process of its own, and returns the JSON that it prints."""
    command = [sys.executable, program, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=timeout).stdout)


@contextlib.contextmanager
def running(*processes: subprocess.Popen[Any]) -> Iterator[None]:
    """Ends processes at the end of the block."""
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


@contextlib.contextmanager
def server(command: Sequence[str | Path], path: str | Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a server, and waits for its socket."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env={**os.environ, **environment})
    with running(process):
        while not os.path.exists(path):
            assert process.poll() is None, f"{command[0]} has ended"
            time.sleep(0.01)
        yield process


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[None]:
    """Starts a daemon with a pool of 4 GiB, in a process of its own, and names it in the environment."""
    config, path = folder / "config.toml", folder / "tensorlend.sock"
    config.write_text('[pool]\nbytes_max = "4GiB"\n')
    os.environ["TENSORLEND_SOCKET"] = str(path)
    with server(["tensorlendd", "--socket", path, "--config", config], path):
        yield


def redis_server(folder: str | Path) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Starts a server of Redis with the socket `redis.sock` in a folder. Raises ImportError if Redis is not installed."""
    if shutil.which("redis-server") is None:
        raise ImportError("redis-server is not installed")
    path = Path(folder, "redis.sock")
    command = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", folder]
    # A fair comparison: without these settings, glibc maps and unmaps memory for every large value.
    return server(command, path, MALLOC_TRIM_THRESHOLD_=str(1 << 40), MALLOC_MMAP_THRESHOLD_=str(1 << 30))


def smaps(pid: int | str) -> dict[str, int]:
    """Returns the bytes of a process's memory by kind, as the kernel names the kinds."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(kib.split()[0]) << 10 for name, _, kib in (line.partition(":") for line in lines)}


def pss(*pids: int | str) -> int:
    """Returns the bytes of memory of these processes. Memory that several processes share is divided among them."""
    return sum(smaps(pid)["Pss"] for pid in pids)


def family(root: int | None = None) -> list[int]:
    """Returns the numbers of a process and of its descendants: workers, the fork server, the resource tracker."""
    found = [os.getpid() if root is None else root]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, children.read_text().split())
    return found
