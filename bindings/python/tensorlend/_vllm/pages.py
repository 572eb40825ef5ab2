"""A worker's part: copies between the engine's pages and lent blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from tensorlend._native import Lease

_Bytes = npt.NDArray[np.uint8]


class Pages:
    """The engine's KV cache, with a tensor of pages for each layer. A lent block contains the same
    page of all layers, in their order.
    """

    def __init__(self, layers: Mapping[str, torch.Tensor], count: int) -> None:
        """Takes the tensors as the engine registers them. `count` is the engine's number of pages."""
        self._layers = [_by_page(name, layer, count) for name, layer in layers.items()]
        self._sizes = [layer[0].numel() * layer.element_size() for layer in self._layers]
        self._is_host = all(layer.device.type == "cpu" for layer in self._layers)
        #: Bytes of a block.
        self.nbytes = sum(self._sizes)

    def write(self, page: int, lease: Lease[Any]) -> None:
        """Copies a block into a page."""
        block = lease.torch()
        if not self._is_host:
            # Make one copy to the device for all layers.
            block = block.to(self._layers[0].device)
        at = 0
        for layer, size in zip(self._layers, self._sizes, strict=True):
            target = layer[page]
            target.copy_(block[at : at + size].view(layer.dtype).view(target.shape))
            at += size

    def read(self, page: int, into: _Bytes) -> None:
        """Copies a page into a block."""
        block = torch.from_numpy(into)
        if self._is_host:
            at = 0
            for layer, size in zip(self._layers, self._sizes, strict=True):
                source = layer[page]
                block[at : at + size].view(layer.dtype).view(source.shape).copy_(source)
                at += size
        else:
            # Make one copy from the device for all layers.
            parts = [layer[page].contiguous().view(-1).view(torch.uint8) for layer in self._layers]
            block.copy_(torch.cat(parts))


def _by_page(name: str, layer: torch.Tensor, count: int) -> torch.Tensor:
    """Returns a view of a layer's tensor whose first dimension is the page.

    In engines, the dimension of pages is first, or follows a dimension of two for keys and values.
    A kernel may divide a page of the scheduler into several smaller ones.
    """
    if layer.shape[0] != count and layer.ndim > 1 and layer.shape[0] == 2 and layer.shape[1] % count == 0:
        layer = layer.movedim(1, 0)
    if count == 0 or layer.shape[0] % count:
        raise ValueError(f"layer {name!r} has the shape {tuple(layer.shape)}, in which no dimension is that of {count} pages")
    return layer.unflatten(0, (count, layer.shape[0] // count))
