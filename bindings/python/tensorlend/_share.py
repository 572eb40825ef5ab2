"""`share`: one copy of an object on the machine. See docs/how-to/share.md.

A shared object is published as one dataset. `share` pickles the object, without its large parts: arrays, tensors, Arrow
tables, and long lists and dicts. Each part is a member of the dataset, and the pickle is the member OBJECT. The result of
`share` is made from the pickle and from views of the members. So it has the type of the object, and each of its parts is
pickled as a reference to the dataset and the member.

The steps of `share(name, build)`, with builder B, another process P, and daemon D:

1. P leases the dataset `name`. If it has the key that P asks for, P is done.
2. P opens the stream `name/build`, which one client alone can produce. That client is B. The others wait for a newer value
   of `name`, at most AGAIN seconds, and begin again at 1.
3. B repeats step 1, because an earlier builder may have published between steps 1 and 2.
4. B builds the object, and publishes the dataset in one atomic step.
5. B deletes the stream.

If B is killed before the end of step 4, D frees what B has written and ends its stream, so that one of the others becomes
the builder within AGAIN seconds. If B is killed between 4 and 5, the dataset is published.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tensorlend import _native
from tensorlend._errors import ArgumentError, ConflictError, DTypeError, NotFoundError, TimeoutError, UntrustedPickleError
from tensorlend._objects.source import Published, held, own_name
from tensorlend.objects import FrozenDict, FrozenList

if TYPE_CHECKING:
    from tensorlend._types import Mode

_T = TypeVar("_T")
_K = TypeVar("_K")
_V = TypeVar("_V")

#: The key of the object's version in the metadata of its dataset.
MARK = "shared"
#: Seconds between two attempts to become the builder, because the present builder may have been killed.
AGAIN = 0.1


@overload
def share(obj: Mapping[_K, _V], /, *, mode: Mode = "read", client: _native.Client | None = None) -> FrozenDict[_K, _V]: ...
@overload
def share(
    obj: list[_T] | tuple[_T, ...] | Iterator[_T], /, *, mode: Mode = "read", client: _native.Client | None = None
) -> FrozenList[_T]: ...
@overload
def share(
    name: str,
    build: Callable[[], Any] | Any = None,
    /,
    *,
    key: object = None,
    timeout: float | None = None,
    mode: Mode = "read",
    trust_pickle: bool = False,
    client: _native.Client | None = None,
) -> Any: ...
@overload
def share(obj: _T, /, *, mode: Mode = "read", client: _native.Client | None = None) -> _T: ...
def share(
    obj: Any,
    build: Any = None,
    /,
    *,
    key: object = None,
    timeout: float | None = None,
    mode: Mode = "read",
    trust_pickle: bool = False,
    client: _native.Client | None = None,
) -> Any:
    """Copies an object into shared memory once, and returns it as an object that all processes of the machine share.

    `share(obj)` shares an object with the processes to which the program passes the result: by fork, by pickle, or as the
    data set of a `DataLoader`. The memory stays while this process has the result, and while any process uses it.
    `share(name, build)` also finds the object that another process has shared under this name. If there is none, it calls
    `build()`, while other processes that want the name wait. The name stays until somebody deletes it.

    A list, a tuple or an iterator becomes a FrozenList, and a dict a FrozenDict. Any other object keeps its type, and its
    large parts are shared: arrays, tensors, Arrow tables, and lists, tuples and dicts of 256 KiB and more. The result is
    read-only.

    Parameters
    ----------
    obj : object
        The object, or with `build` its name.
    build : callable or object, optional
        A function without parameters that returns the object; or the object itself, which then replaces one with other contents.
        Without it, the name must exist.
    key : object, default None
        The version that the caller wants: text, numbers, and lists and dicts of them, such as a list of files with their times.
        An object with another key is built again. None accepts any version.
    timeout : float or None, default None
        Maximum wait in seconds for another process that builds the object. None waits forever.
    mode : {"read", "cow"}, default "read"
        Whether arrays and tensors are read-only, or writable, such that the process gets a private copy of each page that it changes.
    trust_pickle : bool, default False
        Whether to unpickle an object of a namespace other than this user's own, in which others may have published it.
    client : Client or None, default None
        The client that publishes. None is the default client, of the user's daemon.

    Returns
    -------
    object
        The shared object.

    Raises
    ------
    LimitError
        A limit of the daemon's configuration, of this client or of the machine is reached.
    NotFoundError
        There is no object of this name, and no `build`.
    TimeoutError
        Another process has not built the object in time.
    """
    from tensorlend._default import default_client

    client = client or default_client()
    if mode not in ("read", "cow"):
        raise ArgumentError(f"mode is 'read' or 'cow', not {mode!r}")
    if type(obj) is str:
        trusted = trust_pickle or client.namespace == f"uid:{os.getuid()}"
        return _Named(client, obj, None if key is None else _digest(key), mode, trusted).get(build, timeout)
    if build is not None or key is not None or timeout is not None:
        raise ArgumentError("share(name, build) takes a str as the name: share(obj) has no name, key or timeout")
    from tensorlend._objects.parts import Split

    name = own_name()
    split = Split(obj, keep=True)
    version = client.put_dataset(name, split.write(client), ephemeral=True)
    dataset = client.get_dataset(name, mode=mode)
    if dataset.version != version:
        raise NotFoundError(f"{name!r} was overwritten while it was shared")
    value = held(client, dataset, mode)
    value.shared_by(client)
    value.own(client, name)
    return split.join(value)


def _digest(key: object) -> str:
    try:
        text = json.dumps(key, sort_keys=True, default=os.fspath)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"key: {error}: pass text, numbers, or lists and dicts of them") from error
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _key_of(value: Any) -> str | None:
    """Returns the key of a shared object; None for a value that is none."""
    from tensorlend._objects.parts import OBJECT

    try:
        return str(value.metadata[MARK]) if isinstance(value, _native.Dataset) and OBJECT in value else None
    except (ValueError, KeyError, TypeError):
        return None


def _is_function(build: Any) -> bool:
    # Not every callable object: a module of torch is one, too.
    kinds = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial, type)
    return isinstance(build, kinds)


class _Named:
    """A shared object with a name."""

    def __init__(self, client: _native.Client, name: str, key: str | None, mode: Mode, trusted: bool) -> None:
        self._client = client
        self._name = name
        self._key = key
        self._mode: Mode = mode
        self._trusted = trusted
        self._lock = f"{name}/build"

    def get(self, build: Any, timeout: float | None) -> Any:
        """Returns the object, and builds it if it does not exist."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            found = self._find()
            if isinstance(found, Published) and (self._key is not None or build is None or _is_function(build)):
                return self._open(found)
            if build is None:
                wanted = "" if self._key is None else " and this key"
                raise NotFoundError(f"no shared object has the name {self._name!r}{wanted}: pass a function that builds it")
            try:
                lock = self._client.stream(self._lock, capacity=1)
            except ConflictError:
                self._wait(found, end)
                continue
            pid = os.getpid()
            try:
                self._build(build)
            finally:
                # A child that `build` has forked, and that raised an error, does not have the lock. Delete the stream first:
                # another process may open it as soon as this process no longer produces it.
                if os.getpid() == pid:
                    self._client.delete_stream(self._lock)
                    lock.close()

    def _wait(self, found: Published | _native.Version | None, end: float | None) -> None:
        """Waits until another process has built the object, but at most AGAIN seconds."""
        left = AGAIN if end is None else min(AGAIN, end - time.monotonic())
        if left <= 0:
            raise TimeoutError(f"timed out while another process builds {self._name!r}: it produces the stream {self._lock!r}")
        seen = found.leased.version if isinstance(found, Published) else found
        try:
            self._client.wait_newer(self._name, seen, timeout=left).release()
        except TimeoutError:
            return

    def _find(self) -> Published | _native.Version | None:
        """Leases the published object if it has the key. Otherwise returns the version of the other value, if there is one."""
        try:
            dataset = self._client.get_value(self._name, mode=self._mode)
        except NotFoundError:
            return None
        key = _key_of(dataset)
        if key is None:
            raise DTypeError(f"{self._name!r} holds a value that `share` has not published: choose another name")
        if self._key not in (None, key):
            version: _native.Version = dataset.version
            return version
        assert isinstance(dataset, _native.Dataset)
        return held(self._client, dataset, self._mode)

    def _build(self, build: Any) -> None:
        """Builds and publishes the object, unless another process has published it."""
        from tensorlend._objects.parts import Split, digest

        is_function = _is_function(build)
        if is_function and isinstance(self._find(), Published):
            return
        drafts = Split(build() if is_function else build, keep=False).write(self._client)
        if not is_function and self._key is None:
            self._key = digest(drafts)
            if isinstance(self._find(), Published):
                for draft in drafts.values():
                    draft.drop()
                return
        version = self._client.put_dataset(self._name, drafts, metadata={MARK: self._key or ""})
        dataset = self._client.get_dataset(self._name, mode=self._mode)
        try:
            self._open(held(self._client, dataset, self._mode))
        except Exception as error:
            if dataset.version == version:
                self._client.delete(self._name)
            raise ArgumentError(f"{self._name!r} cannot be unpickled: {error}") from error

    def _open(self, value: Published) -> Any:
        from tensorlend._objects.parts import OBJECT, Joiner

        if not self._trusted:
            raise UntrustedPickleError(
                f"{self._name!r} is a pickle in a namespace in which others may publish: pass trust_pickle=True if you trust them"
            )
        value.shared_by(self._client)
        return Joiner(value.lease(OBJECT).numpy(), value, []).load()
