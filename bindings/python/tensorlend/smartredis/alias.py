"""This package under the name ``smartredis``, for unchanged programs."""

import importlib
import os
import sys

__all__ = ["SHIM", "install"]

_PACKAGE = "tensorlend.smartredis"

# The modules of the original package. Each is mapped to this package's modules with the names that
# programs import from it.
_MODULES = {
    "smartredis.client": "client",
    "smartredis.configoptions": "config",
    "smartredis.dataset": "dataset",
    "smartredis.dataset_utils": "converter",
    "smartredis.error": "error",
    "smartredis.logcontext": "context",
    "smartredis.logger": "logging",
    "smartredis.smartredisPy": "logging",
    "smartredis.srobject": "context",
    "smartredis.util": "util",
}

# A directory whose package ``smartredis`` calls ``install``. It is added to PYTHONPATH for the
# processes that a program starts.
SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim")


def install() -> None:
    """Makes ``import smartredis`` import this package in this process, even if the original is installed."""
    package = importlib.import_module(_PACKAGE)
    sys.modules["smartredis"] = package
    for name, ours in _MODULES.items():
        module = importlib.import_module(f"{_PACKAGE}.{ours}")
        sys.modules[name] = module
        _, _, last = name.rpartition(".")
        if not hasattr(package, last):
            setattr(package, last, module)
