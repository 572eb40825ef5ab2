"""References to values, for other processes, and the pickling of clients and leases."""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorlend import _native
from tensorlend._errors import NotFoundError

if TYPE_CHECKING:
    # Do not import numpy with the package. The package also runs the daemon, and threads that
    # numpy starts would receive the daemon's signals.
    import numpy as np

    from tensorlend._types import Mode

#: Time to live in seconds of the copy that is published when a message's lease is pickled.
MESSAGE_TTL = 60.0

_clients: dict[tuple[tuple[str, ...], str | None], _native.Client] = {}
#: The results of `where`, which never change.
_wheres: weakref.WeakKeyDictionary[_native.Client, tuple[tuple[str, ...], str | None]] = weakref.WeakKeyDictionary()

# A forked child opens its own sessions, because those in this dict belong to the parent.
os.register_at_fork(after_in_child=_clients.clear)


def client_for(address: tuple[str, ...], namespace: str | None) -> _native.Client:
    """Returns this process's client for received values. There is one client for each daemon and namespace."""
    key = (address, namespace)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = _native.connect(address, namespace=namespace)
    return client


@dataclass(frozen=True)
class TensorRef:
    """A small, picklable reference to a tensor, valid in every process that may join the namespace.

    `Client.share` returns a reference. The reference has no lease on the tensor. `take`, `delete`
    or the time to live end the tensor.

    Attributes
    ----------
    address : tuple of str
        The daemon's sockets.
    namespace : str or None
        The namespace; None is the user's private one.
    name : str
        The tensor's name.
    shape : tuple of int
        Sizes, in elements.
    dtype : numpy.dtype
        Element type.
    """

    address: tuple[str, ...]
    namespace: str | None
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def get(self, *, mode: Mode = "read") -> _native.Lease | _native.DeviceLease:
        """Leases the tensor.

        Parameters
        ----------
        mode : {"read", "cow"}, default "read"
            As in `Client.get`.

        Returns
        -------
        Lease or DeviceLease
            The lease; a DeviceLease if the tensor is on a device.

        Raises
        ------
        NotFoundError
            The tensor was taken or deleted, or its time to live has passed.
        """
        return client_for(self.address, self.namespace).get(self.name, mode=mode)

    def take(self, *, mode: Mode = "read") -> _native.Lease | _native.DeviceLease:
        """Leases the tensor and deletes its name. When the lease ends, the memory is freed.

        Parameters
        ----------
        mode : {"read", "cow"}, default "read"
            As in `Client.get`.

        Returns
        -------
        Lease or DeviceLease
            The lease; a DeviceLease if the tensor is on a device.

        Raises
        ------
        NotFoundError
            The tensor was taken or deleted, or its time to live has passed.
        """
        lease = self.get(mode=mode)
        self.delete()
        return lease

    def delete(self) -> bool:
        """Deletes the tensor's name. Leases on it stay valid.

        Returns
        -------
        bool
            False if the name no longer existed.
        """
        return client_for(self.address, self.namespace).delete(self.name)


def get_version(client: _native.Client, name: str, words: tuple[int, int], mode: Mode) -> Any:
    """Leases the value of a name if it has this version. Returns None if another value has replaced
    it.
    """
    lease = client.get_value(name, mode=mode)
    return lease if _is_of(lease, words) else None


def _is_of(value: _native.Lease | _native.DeviceLease | _native.Dataset, words: tuple[int, int]) -> bool:
    return value.version == _native.Version.from_words(words)


def where(client: _native.Client) -> tuple[tuple[str, ...], str | None]:
    """Returns the arguments of `client_for`. With them, another process joins this client's namespace."""
    found = _wheres.get(client)
    if found is None:
        options = client._options
        found = _wheres[client] = tuple(os.fspath(path) for path in options["address"]), options["namespace"]
    return found


def share(client: _native.Client, value: Any, metadata: Mapping[str, Any] | bytes | None, ttl: float | None) -> TensorRef:
    """Implements `Client.share`."""
    name = f"ref/{secrets.token_hex(8)}"
    client.put(name, value, metadata=metadata, ttl=ttl)
    info = client.info(name)
    assert info.shape is not None and info.dtype is not None
    return TensorRef(*where(client), name, info.shape, info.dtype)


def reduce_client(client: _native.Client) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Pickles a client as the options of its connection."""
    return _connect, (client._options,)


def _connect(options: dict[str, Any]) -> _native.Client:
    return _native.connect(options.pop("address"), **options)


def reduce_lease(lease: _native.Lease | _native.DeviceLease) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Pickles a lease as its name and version. A message's lease is pickled as a copy under a new name."""
    sockets, namespace, name, member, words, mode, named = lease._origin
    address = tuple(os.fspath(path) for path in sockets)
    if not named:
        ref = share(client_for(address, namespace), lease, lease.metadata_bytes, MESSAGE_TTL)
        return _received, (address, namespace, ref.name, "", None, mode)
    return _received, (address, namespace, name, member or "", words, mode)


def reduce_dataset(dataset: _native.Dataset) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Pickles a dataset as `reduce_lease` pickles a lease."""
    sockets, namespace, name, words, mode, named = dataset._origin
    address = tuple(os.fspath(path) for path in sockets)
    if not named:
        name = f"ref/{secrets.token_hex(8)}"
        client_for(address, namespace).put_dataset(
            name, dataset, metadata=dataset.metadata_bytes, timestamp=dataset.timestamp, ttl=MESSAGE_TTL
        )
    return _received, (address, namespace, name, None, words if named else None, mode)


def _received(
    address: tuple[str, ...],
    namespace: str | None,
    name: str,
    member: str | None,
    words: tuple[int, int] | None,
    mode: Mode,
) -> Any:
    """Returns the value of a pickle or, of a dataset, the member with a name that is not None."""
    value = client_for(address, namespace).get_value(name, mode=mode)
    if words is not None and not _is_of(value, words):
        raise NotFoundError(
            f"{name!r} was overwritten after a lease on it was sent: send a reference of Client.share, "
            "or give each value a name of its own"
        )
    return value if member is None or not isinstance(value, _native.Dataset) else value[member]
