"""Installs tensorlend's transports when a program imports the modules that they serve. Before that,
this module imports neither these modules nor tensorlend.

`python -m tensorlend.run` uses this module in the program's process. `sitecustomize` of this
directory uses it in Python processes that the program starts. TENSORLEND_RUN names a memory file of
the program's process, which has a page of counters for each process. Only that process writes to its
page. The page also preserves the counters of a process that was killed. The file ends with the
processes that have it open or mapped, so it needs no cleanup.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import mmap
import os
import struct
import sys
from typing import Any

#: The environment variable that is set if a program runs under tensorlend.run. Its value is the
#: path of the file of counters.
VARIABLE = "TENSORLEND_RUN"
#: The environment variable that is set if a program runs under `tensorlend.run --weights`.
WEIGHTS = "TENSORLEND_RUN_WEIGHTS"
#: Counters of a process: the number of lent values, their bytes, and the number of values that
#: could not be lent; the same three of files of weights; and why the first of these files could
#: not be lent, as UTF-8.
COUNTERS = struct.Struct("=6Q256s")
#: The modules that the program must have imported before a transport is installed.
NEEDS = {
    "multiprocessing": {"numpy", "multiprocessing.reduction"},
    "torch": {"torch"},
    "joblib": {"joblib"},
}
#: The same for the functions that `--weights` replaces.
NEEDS_OF_WEIGHTS = {
    "safetensors.numpy": {"safetensors.numpy"},
    "safetensors.torch": {"safetensors.torch"},
}
#: The name of the file of counters.
_FILE = "tensorlend-run"
_WATCHED = frozenset().union(*NEEDS.values(), *NEEDS_OF_WEIGHTS.values())

_imported: set[str] = set()
_installed: set[str] = set()
#: Reasons why a transport could not be installed, which the line at the program's end has.
problems: list[str] = []


def create_counters() -> str:
    """Creates the file of counters. Returns its path, which is valid while this process lives."""
    return f"/proc/{os.getpid()}/fd/{os.memfd_create(_FILE)}"


def _open_counters(path: str) -> int:
    """Opens the file of counters. Raises OSError if the program's process has ended or has closed the file."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    if not os.readlink(f"/proc/self/fd/{file}").startswith(f"/memfd:{_FILE}"):
        # Another file has its number now.
        os.close(file)
        raise FileNotFoundError(path)
    return file


class _Counters:
    def __init__(self, path: str) -> None:
        self._path = path
        self._memory: mmap.mmap | None = None
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._memory = None

    def count_value(self, nbytes: int, lent: bool) -> None:
        """Counts an array or a tensor of a message."""
        self._add(0, nbytes, lent, b"")

    def count_file(self, nbytes: int, refusal: str | None) -> None:
        """Counts a loaded file of weights. `refusal` is the reason why it could not be lent."""
        self._add(3, nbytes, refusal is None, (refusal or "").encode())

    def _add(self, at: int, nbytes: int, lent: bool, reason: bytes) -> None:
        try:
            if self._memory is None:
                self._memory = self._new_page()
            *numbers, first = COUNTERS.unpack_from(self._memory)
            if lent:
                numbers[at] += 1
                numbers[at + 1] += nbytes
            else:
                numbers[at + 2] += 1
            COUNTERS.pack_into(self._memory, 0, *numbers, first if first.strip(b"\0") else reason)
        except OSError:
            # Ignore the error. The program's process has ended, and prints no totals.
            return

    def _new_page(self) -> mmap.mmap:
        file = _open_counters(self._path)
        try:
            # The kernel appends one page at a time. A lock would not work, because a process that forks in the meantime
            # would keep it.
            if os.write(file, bytes(mmap.PAGESIZE)) != mmap.PAGESIZE:
                raise OSError("no memory for the counters")
            return mmap.mmap(file, COUNTERS.size, offset=os.lseek(file, 0, os.SEEK_CUR) - mmap.PAGESIZE)
        finally:
            os.close(file)


_counters: _Counters | None = None


def totals(path: str) -> tuple[list[int], str]:
    """Returns the sums of the counters of all processes, and one reason why a file could not be
    lent. Raises OSError if the program has closed the file of counters.
    """
    sums, reason = [0] * 6, b""
    with open(_open_counters(path), "rb") as pages:
        while len(text := pages.read(mmap.PAGESIZE)) == mmap.PAGESIZE:
            *numbers, said = COUNTERS.unpack_from(text)
            sums = [total + number for total, number in zip(sums, numbers, strict=True)]
            reason = reason or said.rstrip(b"\0")
    return sums, reason.decode(errors="ignore")


class _Loader(importlib.abc.Loader):
    """Runs a module's own loader, and then installs the transports whose modules are all imported."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        # Restore the module's own loader, so that the module does not refer to this loader.
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _imported.add(module.__spec__.name)
        _install()


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in _WATCHED or name in _imported:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


def _install() -> None:
    global _counters
    for transport, needs in (NEEDS | NEEDS_OF_WEIGHTS if WEIGHTS in os.environ else NEEDS).items():
        if transport in _installed or not needs <= _imported:
            continue
        _installed.add(transport)
        try:
            if _counters is None and os.environ.get(VARIABLE):
                _counters = _Counters(os.environ[VARIABLE])
            if transport in NEEDS_OF_WEIGHTS:
                _replace_load_file(transport)
            else:
                _install_transport(transport)
        except Exception as error:  # The program runs without this transport.
            problems.append(f"{transport}: {error}")
            logging: Any = importlib.import_module("logging")
            logging.getLogger("tensorlend").info("%s works as usual, without lent memory: %s", transport, error)


def _install_transport(transport: str) -> None:
    module: Any = importlib.import_module(f"tensorlend.{transport}")
    transit: Any = importlib.import_module("tensorlend._transit")
    if transit.counter is None and _counters is not None:
        transit.counter = _counters.count_value
    module.install()


def _replace_load_file(name: str) -> None:
    weights: Any = importlib.import_module("tensorlend._weights_run")
    if _counters is not None:
        weights.counter = _counters.count_file
    weights.install(sys.modules[name])


def watch() -> None:
    """Watches imports from now on, and installs the transports whose modules are already imported.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        _imported.update(_WATCHED & set(sys.modules))
        _install()
