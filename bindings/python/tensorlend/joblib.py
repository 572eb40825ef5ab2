"""Sends joblib's large arrays as leases instead of files in /dev/shm: see docs/how-to/joblib.md."""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import joblib  # type: ignore[import-untyped, unused-ignore]
import numpy as np
from joblib._parallel_backends import LokyBackend  # type: ignore[import-untyped, unused-ignore]

from tensorlend import _native, _presence, _transit
from tensorlend._default import default_client
from tensorlend._errors import Error
from tensorlend._refs import client_for, get_version, where
from tensorlend.multiprocessing import SMALLEST, TTL

if TYPE_CHECKING:
    from tensorlend._types import Mode

__all__ = ["LeaseBackend", "install", "uninstall"]

_LOG = logging.getLogger("tensorlend")

_client: _native.Client | None = None


def install(*, client: _native.Client | None = None) -> None:
    """Makes `joblib.Parallel`, and so scikit-learn, lend large arrays to its workers.

    From then on, `LeaseBackend` is joblib's default backend, and its backend "loky" and "tensorlend", also within the
    workers. Arguments above `max_nbytes` become leases in place of memory-mapped files, and so do large results. loky does
    everything else.

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
    _client = client or default_client()
    _register()


def uninstall() -> None:
    """Makes joblib's own loky its default backend again, and its backend "loky"."""
    joblib.register_parallel_backend("loky", LokyBackend, make_default=True)


def _register() -> None:
    joblib.register_parallel_backend("tensorlend", LeaseBackend)
    joblib.register_parallel_backend("loky", LeaseBackend, make_default=True)


def _begin_worker(address: tuple[str, ...], namespace: str | None, initializer: Any, arguments: tuple[Any, ...]) -> None:
    """Installs the backend in a worker, for calls of `Parallel` within tasks. Then calls the program's initializer."""
    global _client
    try:
        _client = client_for(address, namespace)
    except Error as error:
        _LOG.info("calls of Parallel within tasks send arrays as joblib does: %s", error)
        _client = None
    _register()
    if initializer is not None:
        initializer(*arguments)


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
            try:
                # A worker that ends must find this process, which receives its results.
                _presence.join(_client)
            except Error as error:
                _LOG.info("joblib sends the arrays of this call itself: %s", error)
                return super().configure(n_jobs=n_jobs, parallel=parallel, **options)
            options["forward_reducers"] = _Reducers({np.ndarray: _Argument(*address, smallest, "read" if mode == "r" else "cow")})
            # Name a directory. Otherwise joblib makes one in /dev/shm, even if it puts nothing
            # there.
            options["temp_folder"] = options.get("temp_folder") or tempfile.gettempdir()
            options["backward_reducers"] = _Reducers({np.ndarray: _Result(*address)})
            given = {**getattr(self, "backend_kwargs", {}), **options}
            options["initializer"] = _begin_worker
            options["initargs"] = (*address, given.get("initializer"), given.get("initargs", ()))
        return super().configure(n_jobs=n_jobs, parallel=parallel, **options)

    def start_call(self) -> None:
        """Begins a call of `Parallel`. It sends arrays as they are now, and not as an earlier call
        has sent them.
        """
        super().start_call()
        _lent.start(id(self))

    def stop_call(self) -> None:
        """Ends a call of `Parallel`, whose workers have leased its arguments."""
        super().stop_call()
        _lent.stop(id(self))

    def terminate(self) -> None:
        """Ends this use of the workers."""
        super().terminate()
        _lent.stop(id(self))


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
    """The arrays that are lent during calls, each under one name.

    A name is *current* until the next start or end of a call, or until its array is freed. Later
    tasks get a new name, because the program may have changed the array. Tasks that were sent may
    still open the former name, so it is deleted when the calls that ran at that time have ended.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._running: set[int] = set()
        self._current: dict[int, tuple[weakref.ref[Any], str, tuple[int, int]]] = {}
        self._former: dict[str, set[int]] = {}

    def start(self, call: int) -> None:
        """Begins a call."""
        with self._lock:
            self._retire(list(self._current))
            self._running.add(call)

    def stop(self, call: int) -> None:
        """Ends a call."""
        with self._lock:
            self._retire(list(self._current))
            self._running.discard(call)
            for name, calls in list(self._former.items()):
                calls.discard(call)
                if not calls:
                    self._delete(name)

    def _retire(self, keys: list[int]) -> None:
        with self._lock:
            for key in keys:
                entry = self._current.pop(key, None)
                if entry is not None:
                    self._former[entry[1]] = set(self._running)
                    if not self._running:
                        self._delete(entry[1])

    def _delete(self, name: str) -> None:
        del self._former[name]
        if _client is not None and not _client.closed:
            try:
                _client.delete(name)
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
            found = self._current.get(key)
            if found is not None and found[0]() is array:
                return found[1:]
            name = f"joblib/{os.getpid()}/{secrets.token_hex(8)}"
            try:
                words = _client.put(name, array, ephemeral=True).words
            except Error as error:
                _transit.count(array.nbytes, error)
                return None
            _transit.count(array.nbytes)
            self._current[key] = (weakref.ref(array, lambda _: self._retire([key])), name, words)
            return name, words


_lent = _Lent()


def _forget_parent() -> None:
    global _lent
    _lent = _Lent()


# The calls of the parent do not run in the child, and another thread may have held the lock.
os.register_at_fork(after_in_child=_forget_parent)


# Two reducers with the same fields compare equal, so that joblib reuses its workers.


@dataclass
class _Argument:
    """Reduces an array that a worker receives."""

    address: tuple[str, ...]
    namespace: str | None
    smallest: int
    mode: Mode

    def __call__(self, array: np.ndarray[Any, Any]) -> Any:
        if array.nbytes > self.smallest and _transit.is_plain(array.dtype) and _client is not None:
            found = _lent.name(array)
            if found is not None:
                return _opened, (self.address, self.namespace, *found, self.mode)
        return array.__reduce_ex__(4)


@dataclass
class _Result:
    """Reduces an array that a worker returns. The caller receives the array once, and may write to
    it.
    """

    address: tuple[str, ...]
    namespace: str | None

    def __call__(self, array: np.ndarray[Any, Any]) -> Any:
        if array.nbytes >= SMALLEST and _transit.is_plain(array.dtype):
            try:
                by = _transit.Settings(client_for(self.address, self.namespace), SMALLEST, TTL, "cow")
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
