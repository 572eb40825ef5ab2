"""Sends joblib's large arrays as leases instead of files in /dev/shm: see docs/how-to/joblib.md."""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
import weakref
from typing import TYPE_CHECKING, Any

import joblib  # type: ignore[import-untyped, unused-ignore]
import numpy as np
from joblib._parallel_backends import LokyBackend  # type: ignore[import-untyped, unused-ignore]

from tensorlend import _native, _transit
from tensorlend._errors import Error
from tensorlend._refs import client_for, get_version, where
from tensorlend.multiprocessing import SMALLEST, TTL

if TYPE_CHECKING:
    from tensorlend._types import Mode

__all__ = ["LeaseBackend", "install", "uninstall"]

_client: _native.Client | None = None


def install(*, client: _native.Client | None = None) -> None:
    """Makes `joblib.Parallel`, and so scikit-learn, lend large arrays to its workers.

    From then on, `LeaseBackend` is joblib's default backend. Arguments above `max_nbytes` become leases in place of
    memory-mapped files, and so do large results. loky does everything else.

    Parameters
    ----------
    client : Client or None, default None
        The client that publishes. None is a client of the running daemon, or of a daemon in this
        process.

    Raises
    ------
    DisconnectedError
        The daemon that the environment names cannot be reached.
    """
    global _client
    from tensorlend._default import default_client

    _client = client or default_client()
    joblib.register_parallel_backend("tensorlend", LeaseBackend, make_default=True)


def uninstall() -> None:
    """Makes loky joblib's default backend again."""
    joblib.register_parallel_backend("loky", LokyBackend, make_default=True)


class LeaseBackend(LokyBackend):  # type: ignore[misc]
    """The backend loky of joblib, with leases for large arrays.

    Parameters
    ----------
    **kwargs : object
        Options of loky's backend.
    """

    def configure(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, n_jobs: int = 1, parallel: Any = None, **options: Any
    ) -> Any:
        """Starts the workers, with the reducers of this module.

        Parameters
        ----------
        n_jobs : int, default 1
            The number of workers.
        parallel : joblib.Parallel or None, default None
            The call.
        **options : object
            Options of loky's backend.

        Returns
        -------
        int
            The number of workers.
        """
        mode = options.get("mmap_mode", "r")
        smallest = options.get("max_nbytes", 1 << 20)
        # Leave other modes to joblib. They use files to which workers write, or no sharing.
        if _client is not None and mode in ("r", "c") and isinstance(smallest, int):
            address = where(_client)
            options["forward_reducers"] = _Reducers({np.ndarray: _Argument(*address, smallest, "read" if mode == "r" else "cow")})
            # Name a directory. Otherwise joblib makes one in /dev/shm, even if it puts nothing
            # there.
            options["temp_folder"] = options.get("temp_folder") or tempfile.gettempdir()
            options["backward_reducers"] = _Reducers({np.ndarray: _Result(*address)})
        _lent.begin()
        self._began = True
        try:
            return super().configure(n_jobs=n_jobs, parallel=parallel, **options)
        except BaseException:
            self._finish()
            raise

    def stop_call(self) -> None:
        """Deletes the names of a call's arguments. Its workers have leased them, and the next call
        may change the arrays.
        """
        super().stop_call()
        _lent.clear()

    def terminate(self) -> None:
        """Ends this use of the workers."""
        super().terminate()
        self._finish()

    def _finish(self) -> None:
        if getattr(self, "_began", False):
            self._began = False
            _lent.end()


class _Reducers(dict[Any, Any]):
    """A mapping of reducers by type. joblib adds its own reducers, which do not replace an entry.

    joblib reuses its workers if the next call's mapping is equal. The reducers that joblib has added to this mapping differ in
    each call, so only the other entries are compared.
    """

    def __init__(self, own: dict[Any, Any]) -> None:
        super().__init__(own)
        self._own = own

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reducers) and self._own == other._own

    __hash__ = None

    def __setitem__(self, kind: Any, reduce: Any) -> None:
        self.setdefault(kind, reduce)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


class _Lent:
    """The arrays that are lent during calls, each under one name."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._calls = 0
        self._pid = os.getpid()
        self._names: dict[int, tuple[weakref.ref[Any], str, tuple[int, int]]] = {}

    def begin(self) -> None:
        """Counts a use of the backend."""
        with self._lock:
            self._calls += 1

    def end(self) -> None:
        """Ends a use of the backend."""
        with self._lock:
            self._calls -= 1
        self.clear()

    def clear(self) -> None:
        """Deletes the names, unless another use may still send them."""
        with self._lock:
            if self._calls > 1:
                return
            for key in list(self._names):
                self._forget(key)

    def _forget(self, key: int) -> None:
        with self._lock:
            entry = self._names.pop(key, None)
        if entry is not None and self._pid == os.getpid() and _client is not None and not _client.closed:
            try:
                _client.delete(entry[1])
            except Error:
                # Ignore the error, because the name has ended with the daemon.
                return

    def name(self, array: np.ndarray[Any, Any]) -> tuple[str, tuple[int, int]] | None:
        """Returns the name and the version of an array. Copies the array into lent memory the first
        time. Returns None if the array cannot be lent.
        """
        assert _client is not None
        with self._lock:
            key = id(array)
            found = self._names.get(key)
            if found is not None and found[0]() is array:
                return found[1:]
            name = f"joblib/{os.getpid()}/{secrets.token_hex(8)}"
            try:
                words = _client.put(name, array, ephemeral=True).words
            except Error:
                _transit.count(array.nbytes, False)
                return None
            _transit.count(array.nbytes, True)
            self._names[key] = (weakref.ref(array, lambda _: self._forget(key)), name, words)
            return name, words


_lent = _Lent()


class _Reducer:
    """A picklable function that reduces arrays. Two functions with the same arguments compare
    equal, so that joblib reuses its workers.
    """

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __reduce__(self) -> Any:
        return type(self), self._arguments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reducer) and type(other) is type(self) and self._arguments == other._arguments

    __hash__ = None  # type: ignore[assignment]


class _Argument(_Reducer):
    """Reduces an array that a worker receives. Arguments: address, namespace, smallest length, mode."""

    def __call__(self, array: np.ndarray[Any, Any]) -> Any:
        address, namespace, smallest, mode = self._arguments
        if array.nbytes > smallest and not array.dtype.hasobject and _client is not None:
            found = _lent.name(array)
            if found is not None:
                return _opened, (address, namespace, *found, mode)
        return array.__reduce_ex__(4)


class _Result(_Reducer):
    """Reduces an array that a worker returns. The caller receives the array once, and may write to
    it. Arguments: address, namespace.
    """

    def __call__(self, array: np.ndarray[Any, Any]) -> Any:
        if array.nbytes >= SMALLEST and not array.dtype.hasobject:
            try:
                by = _transit.Settings(client_for(*self._arguments), SMALLEST, TTL, "cow")
            except Error:
                return array.__reduce_ex__(4)
            reduced = _transit.lend(array, by, "numpy")
            if reduced is not None:
                return reduced
        return array.__reduce_ex__(4)


_open: weakref.WeakValueDictionary[tuple[str, tuple[int, int], Mode], Any] = weakref.WeakValueDictionary()


def _opened(
    address: tuple[str, ...], namespace: str | None, name: str, words: tuple[int, int], mode: Mode
) -> np.ndarray[Any, Any]:
    """Returns an argument in a worker. All tasks share one lease on the argument."""
    key = (name, words, mode)
    lease = _open.get(key) if mode == "read" else None
    if lease is None:
        lease = get_version(client_for(address, namespace), name, words, mode)
        if lease is None:
            raise RuntimeError(f"{name!r} was overwritten by another program")
        _open[key] = lease
    array: np.ndarray[Any, Any] = lease.numpy()
    return array
