"""The stub of the compiled module, for editors and type checkers.

usage: python3 stub.py FILE

The signatures are those of src/_native.pyi, and the docstrings are the doc comments of src/*.rs. tensorlend/_twins.py names
the calls that have a twin for asyncio, whose signature and docstring come from those of the call. Editors show the
docstrings of a stub, and not those of a compiled module. The build script calls this program. It reads the sources,
because a build for another processor cannot import the module.
"""

from __future__ import annotations

import ast
import inspect
import pathlib
import re
import runpy
import sys

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "src"
SIGNATURES = SOURCES / "_native.pyi"
#: The package is next to its Rust sources. maturin moves it to the root of a source distribution.
PLACES = [folder / "tensorlend" / "_twins.py" for folder in (SOURCES.parent, SOURCES.parents[2])]
TWINS = runpy.run_path(str(next(filter(pathlib.Path.is_file, PLACES))))
#: An attribute of an item, which may have several lines.
ATTRIBUTE = re.compile(r"^ *#\[(?:[^\[\]]|\[[^\]]*\])*\]$", re.MULTILINE)


def docstrings() -> dict[tuple[str, ...], str]:
    """The docstrings of classes, functions, methods and properties. Those of a macro have the name `$class`."""
    found: dict[tuple[str, ...], str] = {}
    for file in sorted(SOURCES.rglob("*.rs")):
        doc: list[str] = []
        renamed, outer, margin = "", "", ""
        for line in ATTRIBUTE.sub(lambda it: it[0].replace("\n", ""), file.read_text()).splitlines():
            text = line.strip()
            if text.startswith("///"):
                doc.append(text[3:].removeprefix(" "))
            elif name := re.search(r'^#\[(?:pyo3\(|pyclass\(.*\b)name = "(\w+)"', text):
                renamed = name[1]
            elif block := re.match(r"( *)impl (\$?\w+) \{", line):
                margin, outer, doc = block[1], block[2], []
            elif item := re.match(r"( *)(?:pub(?:\(\w+\))? )?(fn|struct) (\w+)", line):
                inside = item[2] == "fn" and len(item[1]) > len(margin) and outer
                if doc:
                    name = renamed or item[3]
                    found[(outer, name) if inside else (name,)] = inspect.cleandoc("\n".join(doc))
                doc, renamed = [], ""
            elif line == margin + "}":
                outer, margin, doc = "", "", []
            elif not text.startswith("#["):
                doc = []
    for call in TWINS["TWINS"]:
        kind, name = call.split(".")
        found[(kind, f"{name}_async")] = TWINS["docstring"](call, found[(kind, name)])
    return found


def members(tree: ast.Module) -> list[tuple[tuple[str, ...], ast.stmt]]:
    """Classes and functions, and those in classes."""
    found = [((node.name,), node) for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    for (outer,), node in list(found):
        inner = node.body if isinstance(node, ast.ClassDef) else []
        found += [((outer, it.name), it) for it in inner if isinstance(it, ast.FunctionDef)]
    return found


def with_twins(text: str) -> str:
    """The stub with a coroutine after each call that has a twin."""
    lines, edits = text.splitlines(), []
    definitions = members(ast.parse(text))
    for call in TWINS["TWINS"]:
        nodes = [node for path, node in definitions if ".".join(path) == call]
        block = []
        for node in nodes:
            first, returns = min([node, *node.decorator_list], key=lambda it: it.lineno).lineno, node.returns
            copy = lines[first - 1 : node.end_lineno]
            last, (start, stop) = copy[returns.lineno - first], (returns.col_offset, returns.end_col_offset)
            copy[returns.lineno - first] = f"{last[:start]}Coroutine[Any, Any, {last[start:stop]}]{last[stop:]}"
            copy[node.lineno - first] = copy[node.lineno - first].replace(f"def {node.name}(", f"def {node.name}_async(")
            block += copy
        edits.append((nodes[-1].end_lineno, block))
    for at, block in sorted(edits, reverse=True):
        lines[at:at] = block
    return "\n".join(lines)


def documented() -> str:
    """The stub with docstrings. The first of overloaded definitions has it."""
    text = with_twins(SIGNATURES.read_text())
    lines, known, seen, edits = text.splitlines(), docstrings(), set(), []
    for path, node in members(ast.parse(text)):
        doc = known.get(path) or known.get(("$class", path[-1]))
        if not doc or path in seen or any(name.startswith("_") for name in path):
            continue
        seen.add(path)
        quoted = f'"""{doc}"""' if "\n" not in doc else f'"""{doc}\n"""'
        margin = " " * (node.col_offset + 4)
        block = [margin + line if line else "" for line in quoted.split("\n")]
        first = node.body[0]
        at, to = first.lineno - 1, first.end_lineno
        if isinstance(node, ast.ClassDef):
            edits.append((node.lineno, node.lineno, [*block, ""]))
        else:
            head = lines[at][: first.col_offset].rstrip() + lines[at][first.end_col_offset :]
            edits.append((at, to, [head, *block, ""]))
    for start, stop, block in sorted(edits, reverse=True):
        lines[start:stop] = block
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(documented())
