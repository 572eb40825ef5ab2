"""Converts leases to jax arrays."""

from typing import Any

from tensorlend._native import Lease


class _Immutable:
    """A lease for jax, without a read-only flag.

    jax imports tensors through a protocol without this flag. It never writes to them, because its
    arrays are immutable. It does not reuse imported memory for results, even if the array was
    donated.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __dlpack__(self, **_: Any) -> Any:
        return self._lease._immutable()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._lease.__dlpack_device__()


def array(lease: Lease) -> Any:
    """Returns a jax array that views the lease's memory."""
    import jax

    return jax.dlpack.from_dlpack(_Immutable(lease))
