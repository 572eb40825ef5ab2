"""Installs tensorlend's hooks in processes that a program under `python -m tensorlend.run` starts.
Python runs this module at its start. The module then runs the next `sitecustomize` on the path.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    if os.environ.get("TENSORLEND_RUN"):
        import tensorlend_run_hooks  # type: ignore[import-not-found, unused-ignore]

        tensorlend_run_hooks.watch()
    others = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_start()
