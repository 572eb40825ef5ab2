"""Leases as arrays of jax."""

from typing import Any

from tensorlend._native import Lease


class _Immutable:
    """A lease, as jax takes it. jax asks for tensors without a flag that says read-only, and never writes to them: its arrays are
    immutable, and memory that it was given is not reused for results, donated or not."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __dlpack__(self, **_: Any) -> Any:
        return self._lease._immutable()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._lease.__dlpack_device__()


def array(lease: Lease) -> Any:
    """An array that looks at the lease in place."""
    import jax

    return jax.dlpack.from_dlpack(_Immutable(lease))
