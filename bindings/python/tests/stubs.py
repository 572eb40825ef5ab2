"""The members of the installed package's stub, and what the compiled module says of them."""

from __future__ import annotations

import ast
import inspect
import pathlib
from collections.abc import Iterator
from typing import Any

from tensorlend import _native

STUB = pathlib.Path(_native.__file__ or "").with_name("_native.pyi")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_public(name: str) -> bool:
    return not name.startswith("_")


def is_property(node: Function) -> bool:
    return any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in node.decorator_list)


def runtime(path: tuple[str, ...]) -> Any:
    """The object of the module: a class, a function, a method or a property."""
    found: Any = _native
    for name in path:
        found = inspect.getattr_static(found, name)
    return found.__func__ if isinstance(found, classmethod) else found


def docstring(path: tuple[str, ...]) -> str:
    return inspect.cleandoc(runtime(path).__doc__ or "")


def signature(path: tuple[str, ...]) -> inspect.Signature:
    found = inspect.signature(runtime(path))
    parameters = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    return found.replace(parameters=parameters)


def members(tree: ast.Module) -> Iterator[tuple[tuple[str, ...], list[Function | ast.ClassDef]]]:
    """Public classes, functions, methods and properties, with their definitions: several, of what is overloaded."""
    found: dict[tuple[str, ...], list[Function | ast.ClassDef]] = {}
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and is_public(node.name):
            found.setdefault((node.name,), []).append(node)
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and is_public(inner.name) and is_public(node.name):
                    found.setdefault((node.name, inner.name), []).append(inner)
    yield from found.items()
