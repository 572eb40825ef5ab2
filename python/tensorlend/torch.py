"""Tensors of torch: loading data (docs/loader.md), and sending them between processes (docs/how-to/multiprocessing.md)."""

from tensorlend._torch_transit import install, uninstall
from tensorlend.loader.torch_kit import empty
from tensorlend.loader.torch_loader import SharedLoader

__all__ = ["SharedLoader", "empty", "install", "uninstall"]
