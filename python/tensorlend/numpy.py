"""Loading data for numpy: see docs/loader.md."""

from tensorlend.loader.job import WorkerInfo, get_worker_info
from tensorlend.loader.numpy_collate import ArrayDataset, default_collate, empty
from tensorlend.loader.numpy_loader import SharedLoader

__all__ = ["ArrayDataset", "SharedLoader", "WorkerInfo", "default_collate", "empty", "get_worker_info"]
