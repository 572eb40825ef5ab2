"""The stub of the compiled module: its members, and its docstrings, which are copied from the module.

`python stubs.py` writes the installed module's docstrings into the stub of this source tree.
"""

from __future__ import annotations

import ast
import inspect
import pathlib
from collections.abc import Iterator
from typing import Any

from tensorlend import _native

STUB = pathlib.Path(__file__).parents[1] / "tensorlend" / "_native.pyi"

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


def written(text: str) -> str:
    """The stub with the docstrings of the module: the first one of overloaded definitions has it."""
    lines = text.splitlines()
    edits = []
    for path, nodes in members(ast.parse(text)):
        node, doc = nodes[0], docstring(path)
        if not doc or ast.get_docstring(node) == doc:
            continue
        indent = " " * (node.col_offset + 4)
        quoted = f'"""{doc}"""' if "\n" not in doc else f'"""{doc}\n"""'
        block = [indent + line if line else "" for line in quoted.split("\n")]
        first = node.body[0]
        assert first.end_lineno is not None
        if not isinstance(first, ast.Expr):
            # A class whose members follow.
            edits.append((first.lineno - 1, first.lineno - 1, [*block, ""]))
            continue
        head = lines[first.lineno - 1][: first.col_offset].rstrip()
        edits.append((first.lineno - 1, first.end_lineno, [head, *block, ""] if head else block))
    for start, stop, block in sorted(edits, reverse=True):
        lines[start:stop] = block
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    STUB.write_text(written(STUB.read_text()))
