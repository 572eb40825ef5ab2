"""The Python client of SmartRedis 0.6.1 on tensorlend. It has the same methods, with shared memory
instead of a database.

Use ``from tensorlend.smartredis import Client, Dataset``. Or run a program that imports
``smartredis`` unchanged, by ``python -m tensorlend.smartredis PROGRAM``. docs/smartredis.md lists
the differences.
"""

from .client import Client
from .config import ConfigOptions
from .context import LogContext, SRObject
from .converter import DatasetConverter
from .dataset import Dataset
from .logging import LLDebug, LLDeveloper, LLInfo, LLQuiet, log_data, log_error, log_warning

__all__ = [
    "Client",
    "ConfigOptions",
    "Dataset",
    "DatasetConverter",
    "LLDebug",
    "LLDeveloper",
    "LLInfo",
    "LLQuiet",
    "LogContext",
    "SRObject",
    "log_data",
    "log_error",
    "log_warning",
]
