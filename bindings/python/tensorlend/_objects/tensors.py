"""Tensors of torch as parts of a shared object."""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
import torch

from tensorlend._objects import layout
from tensorlend._objects.source import Key, Memory, checked, published, read_only


class SharedTensor(torch.Tensor):
    """A tensor in shared memory. It is pickled as a reference to this memory. Slices and results of calculations are plain
    tensors.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    _memory: Memory

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        mode = self._memory.published.key[-1]
        offset = self.data_ptr() - self._memory.start
        if mode != "read" or self.requires_grad or not 0 <= offset < self._memory.nbytes:
            return self._plain().__reduce_ex__(protocol)
        key = self._memory.published.sending()
        attributes = {name: value for name, value in self.__dict__.items() if name != "_memory"}
        name = str(self.dtype).removeprefix("torch.")
        arguments = key, self._memory.member, name, tuple(self.shape), self.stride(), offset // self.itemsize
        return (tensor, arguments, attributes) if attributes else (tensor, arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        copied = memo[id(self)] = self._plain().clone().requires_grad_(self.requires_grad)
        return copied

    def detach(self) -> SharedTensor:
        """Returns a tensor of the same memory without a gradient."""
        return _made(self._plain().detach(), self._memory)

    def _plain(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)  # type: ignore[arg-type]

    def _check(self) -> None:
        if self._memory.published.key[-1] == "read":
            raise read_only("tensor", "tensor.clone()")


#: Methods with a trailing underscore that change the shape or the flags of a tensor, and not its elements.
_VIEWS = frozenset(
    "t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ as_strided_ detach_ requires_grad_ rename_ share_memory_ resize_ resize_as_ "
    "retain_grad_ coalesce_ sparse_resize_ sparse_resize_and_clear_ set_".split()
)
for _name in dir(torch.Tensor):
    _is_method = _name.endswith("_") and not _name.startswith("_") and _name not in _VIEWS
    if _is_method or _name == "__setitem__" or _name.startswith("__i") and hasattr(torch.Tensor, f"__{_name[3:]}"):
        setattr(SharedTensor, _name, checked(getattr(torch.Tensor, _name)))


def described(value: Any) -> tuple[np.ndarray[Any, Any], str, tuple[int, ...]] | None:
    """Returns the bytes, the dtype and the shape of a plain tensor; None for other values."""
    if type(value) not in (torch.Tensor, SharedTensor) or value.layout is not torch.strided or value.device.type != "cpu":
        return None
    name = str(value.dtype).removeprefix("torch.")
    if value.requires_grad or name not in layout.TORCH_DTYPES:
        return None
    plain = value.as_subclass(torch.Tensor)
    flat = plain.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat, name, tuple(value.shape)


def tensor(
    key: Key, member: str, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, offset: int = 0
) -> SharedTensor:
    """Returns a tensor that views a part. Strides and offset are in elements; without strides, the order is C's."""
    value = published(key)
    flat = value.lease(member).torch().view(getattr(torch, dtype))
    view = flat.reshape(shape) if strides is None else flat.as_strided(shape, strides, offset)
    return _made(view, Memory(value, member))


def _made(plain: torch.Tensor, memory: Memory) -> SharedTensor:
    made = torch.Tensor._make_subclass(SharedTensor, plain)
    made._memory = memory
    return made
