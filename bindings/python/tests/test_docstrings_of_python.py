"""Docstrings of the classes and functions that are written in Python: NumPy's style."""

import builtins
import importlib
import inspect
import re

import pytest
from docstyle import check, named

MODULES = [
    "tensorlend",
    "tensorlend.accelerate",
    "tensorlend.gymnasium",
    "tensorlend.joblib",
    "tensorlend.kvcache",
    "tensorlend.multiprocessing",
    "tensorlend.numpy",
    "tensorlend.objects",
    "tensorlend.ray",
    "tensorlend.sb3",
    "tensorlend.testing",
    "tensorlend.torch",
    "tensorlend.weights",
]


def functions_in_python():
    for module in MODULES:
        try:
            module = importlib.import_module(module)
        except ModuleNotFoundError:
            # torch, joblib or gymnasium is not installed.
            continue
        for name in module.__all__:
            thing = getattr(module, name)
            if getattr(thing, "__module__", "tensorlend._native") != "tensorlend._native":
                yield pytest.param(thing, id=f"{module.__name__}.{name}")


@pytest.mark.parametrize("thing", list(functions_in_python()))
def test_what_is_written_in_python(thing):
    """Classes and functions, and the methods of classes."""
    if isinstance(thing, type):
        assert re.match(r"[A-Z].*\.", inspect.cleandoc(thing.__doc__ or "")), thing
        if issubclass(thing, BaseException) or hasattr(thing, "_member_map_"):
            return
        inner = [value for name, value in vars(thing).items() if inspect.isfunction(value) and not name.startswith("_")]
        if inspect.isfunction(thing.__init__) and not hasattr(thing, "__dataclass_fields__"):
            check(inspect.cleandoc(thing.__doc__ or ""), named(inspect.signature(thing)), False)
    elif inspect.isfunction(thing):
        inner = [thing]
    else:
        inner = []
    for function in inner:
        signature = inspect.signature(function)
        names = named(signature)
        check(inspect.cleandoc(function.__doc__ or ""), names, signature.return_annotation not in ("None", None))
        assert not [name for name in names if hasattr(builtins, name)]
