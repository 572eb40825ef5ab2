"""Tensors of torch: loading of data (docs/loader.md) and weights (docs/how-to/weights.md), and
batches of DataLoader's workers (docs/how-to/multiprocessing.md).
"""

from tensorlend._torch_transit import install, uninstall
from tensorlend._weights_torch import load_file, load_state_dict, load_weights
from tensorlend.loader.torch_kit import empty
from tensorlend.loader.torch_loader import SharedLoader

__all__ = ["SharedLoader", "empty", "install", "load_file", "load_state_dict", "load_weights", "uninstall"]
