"""Docstrings in numpy's style: their sections, and whether they fit a signature."""

import builtins
import inspect
import re

import tensorlend

SECTIONS = ["Parameters", "Returns", "Yields", "Raises", "See Also", "Notes", "Examples"]


def sections(doc):
    """Names of sections with their text; the first is the summary."""
    parts = re.split(r"^(\w[\w ]*)\n(-+)$", doc, flags=re.MULTILINE)
    assert all(len(name) == len(rule) for name, rule in zip(parts[1::3], parts[2::3], strict=True)), doc
    return {"": parts[0].strip(), **{name: text.strip("\n") for name, text in zip(parts[1::3], parts[3::3], strict=True)}}


def entries(text):
    """The entries of a section: lines that are not indented."""
    return [line for line in text.split("\n") if line and not line.startswith(" ")]


def check(doc, names, returns):
    found = sections(doc)
    assert re.match(r"[A-Z].*\.", found[""]), f"no summary: {doc!r}"
    names_of = [name for name in found if name]
    assert all(name in SECTIONS for name in names_of), names_of
    assert names_of == sorted(names_of, key=SECTIONS.index), "sections in another order"
    described = [entry.split(" : ")[0] for entry in entries(found.get("Parameters", ""))]
    assert described == names
    assert all(" : " in entry for entry in entries(found.get("Parameters", "")))
    assert ("Returns" in found) == returns
    for name in entries(found.get("Raises", "")):
        assert hasattr(tensorlend, name) or hasattr(builtins, name), f"there is no {name}"


def named(signature):
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [stars.get(p.kind, "") + p.name for p in signature.parameters.values() if p.name != "self"]
