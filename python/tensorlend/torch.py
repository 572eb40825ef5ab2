"""Loading data for torch: see docs/loader.md."""

from tensorlend.loader.torch_kit import empty
from tensorlend.loader.torch_loader import SharedLoader

__all__ = ["SharedLoader", "empty"]
