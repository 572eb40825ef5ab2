"""The engine of examples/python/kv_cache.py."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "examples" / "python"))

from kv_cache import BLOCK, IDENTITY, NBYTES, Engine, prompt

__all__ = ["BLOCK", "IDENTITY", "NBYTES", "Engine", "prompt"]
