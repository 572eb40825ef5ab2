"""A tensor transport of Ray, by which actors on one machine send tensors as leases. See
docs/how-to/ray.md.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from ray.experimental import register_tensor_transport  # type: ignore[import-not-found, import-untyped, unused-ignore]
from ray.experimental.rdt import util  # type: ignore[import-not-found, import-untyped, unused-ignore]
from ray.experimental.rdt.tensor_transport_manager import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)

from tensorlend import _transit
from tensorlend._default import default_client
from tensorlend._errors import Error, NotFoundError
from tensorlend._refs import client_for, where

if TYPE_CHECKING:
    from tensorlend._native import Client
    from tensorlend._types import Mode

__all__ = ["NAME", "install"]

#: The transport's name, as in `@ray.method(tensor_transport="tensorlend")`.
NAME = "TENSORLEND"

#: Seconds for which a process that gets a reference waits until Ray has registered the transport in it.
_REGISTERED_S = 1.0

_installed: tuple[tuple[tuple[str, ...], str | None], Mode] | None = None


def install(*, client: Client | None = None, mode: Mode = "cow") -> None:
    """Registers the tensor transport "tensorlend" with Ray. Call it above the classes of actors that use it, before `ray.init`.

    Results of methods under `@ray.method(tensor_transport="tensorlend")` then travel in lent
    memory. Each receiver's tensor is its own. All actors must run on this machine. Later calls with
    the same daemon and mode do nothing.

    Parameters
    ----------
    client : Client or None, default None
        A client of the daemon that holds the tensors. None is a client of the running daemon, or of
        a daemon in this process.
    mode : {"read", "cow"}, default "cow"
        "cow": receivers may write to their tensors. "read" is faster, and a write ends the receiver's process.

    Raises
    ------
    DisconnectedError
        The daemon that the environment names cannot be reached.
    ValueError
        The transport is registered already, with another daemon or mode.
    """
    _register(where(client or default_client()), mode)


def _register(address: tuple[tuple[str, ...], str | None], of: Mode) -> None:
    global _installed
    if _installed == (address, of):
        return

    # Each call makes its own class. Ray sends the class to the actors by value, and the daemon's
    # address with it.
    class Transport(LeaseTransport):
        daemon = address
        mode = of

    register_tensor_transport(NAME, ["cpu"], Transport, torch.Tensor)
    _installed = (address, of)


@dataclass
class _Lent(TensorTransportMetadata):  # type: ignore[misc, unused-ignore]
    """The daemon that holds the tensors of an object, and the name and version of each."""

    daemon: tuple[tuple[str, ...], str | None] = ((), None)
    values: list[tuple[str, tuple[int, int]]] = field(default_factory=list)
    mode: Mode = "cow"

    def __reduce__(self) -> Any:
        return _received, (self.tensor_meta, self.tensor_device, self.daemon, self.values, self.mode)


def _received(
    tensor_meta: Any, tensor_device: Any, daemon: Any, values: list[tuple[str, tuple[int, int]]], mode: Mode
) -> _Lent:
    """Unpickles the description of an object, and registers the transport if this process has none.

    Ray registers transports by a task of its own in each actor. It awaits this task before it passes an object to the actor, but
    not before it passes a reference within a list or a dict. At high load the actor then gets the reference first.
    """
    deadline = time.monotonic() + _REGISTERED_S
    while not _is_registered() and time.monotonic() < deadline:
        time.sleep(0.01)
    if not _is_registered():
        with contextlib.suppress(ValueError):  # Ray's task has registered it in the meantime
            _register(daemon, mode)
    return _Lent(tensor_meta, tensor_device, daemon, values, mode)


def _is_registered() -> bool:
    return NAME in util.transport_manager_info


class LeaseTransport(TensorTransportManager):  # type: ignore[misc, unused-ignore]
    """Ray's interface of a tensor transport, implemented by leases.

    The steps of one object. Producer P, receiver R, owner O, the process that called P's method:

    1. P publishes a copy of each tensor under a new, ephemeral name.
    2. P's reply carries names and versions to O, and O passes them to each R.
    3. R leases each name, and checks its version. The names stay, because other receivers may follow.
    4. After the last reference to the object is gone, O asks P to delete the names.

    If P ends, its names end with its session. Leases that receivers have stay valid.
    """

    #: Address and namespace of the daemon to which producers publish.
    daemon: ClassVar[tuple[tuple[str, ...], str | None]]
    #: Mode of the receivers' tensors.
    mode: ClassVar[Mode]

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: dict[str, _Lent] = {}

    def tensor_transport_backend(self) -> str:
        """Returns the transport's name."""
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        """Returns True, because receivers need nothing from the producer but the names."""
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        """Returns True, so that Ray does not kill actors after an error."""
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Returns True, because `install` has registered the transport for all actors."""
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[torch.Tensor]) -> _Lent:
        """Publishes the tensors of an object. A repeated call returns the names of the first call."""
        with self._lock:
            lent = self._lent.get(obj_id)
            if lent is None:
                lent = self._publish(rdt_object)
                self._lent[obj_id] = lent
            return lent

    def _publish(self, tensors: list[torch.Tensor]) -> _Lent:
        meta = [(tensor.shape, tensor.dtype) for tensor in tensors]
        lent = _Lent(meta, "cpu" if tensors else None, self.daemon, mode=self.mode)
        client = client_for(*self.daemon)
        try:
            for tensor in tensors:
                if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
                    raise TypeError(f"a tensor on {tensor.device} with {tensor.layout}: the transport sends dense CPU tensors")
                name = _transit.new_name()
                version = client.put(name, tensor.detach().resolve_conj().resolve_neg(), ephemeral=True)
                lent.values.append((name, version.words))
        except BaseException:
            self._delete(lent)
            raise
        return lent

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> CommunicatorMetadata:
        """Returns no data, because the names are enough."""
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """Leases the tensors of an object, or copies them into the given tensors."""
        lent: _Lent = tensor_transport_metadata
        client = client_for(*lent.daemon)
        mode = self.mode if target_buffers is None else "read"
        try:
            views = [_transit.view(client, *value, mode, "torch") for value in lent.values]
        except NotFoundError as error:
            raise NotFoundError(f"the tensors of Ray's object {obj_id} are gone: the actor that made them has ended") from error
        if target_buffers is None:
            return views
        return [target.copy_(tensor) for target, tensor in zip(target_buffers, views, strict=True)]

    def send_multiple_tensors(self, tensors: Any, tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        """Is never called, because the transport is one-sided."""
        raise NotImplementedError("receivers lease the tensors by their names")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: Any) -> None:
        """Deletes the names of an object to which no reference exists any more."""
        with self._lock:
            lent = self._lent.pop(obj_id, None)
        if lent is not None:
            self._delete(lent)

    def _delete(self, lent: _Lent) -> None:
        try:
            for name, _ in lent.values:
                client_for(*self.daemon).delete(name)
        except Error:
            # The daemon has ended, and the names with it.
            return

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """Does nothing, because no step waits for another process."""
