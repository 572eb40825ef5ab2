"""Loading of data (docs/loader.md) and weights (docs/how-to/weights.md) for numpy."""

from tensorlend._weights_numpy import load_file, load_weights
from tensorlend.loader.job import WorkerInfo, get_worker_info
from tensorlend.loader.numpy_collate import ArrayDataset, default_collate, empty
from tensorlend.loader.numpy_loader import SharedLoader

__all__ = ["ArrayDataset", "SharedLoader", "WorkerInfo", "default_collate", "empty", "get_worker_info", "load_file", "load_weights"]
