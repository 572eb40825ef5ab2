"""Each public thing has a docstring in numpy's style, the same in the stub and at runtime, that fits its signature."""

import ast
import builtins
import doctest
import inspect
import pathlib
import re

import numpy as np
import pytest
import stubs
from docstyle import check

import tensorlend

MEMBERS = dict(stubs.members(ast.parse(stubs.STUB.read_text())))
# Those of the command line are not for programs.
SILENT = {"tool", "daemon", "Recipe", "Cancel"}
CALLABLE = {path: nodes for path, nodes in MEMBERS.items() if isinstance(nodes[0], ast.FunctionDef) and path[0] not in SILENT}
METHODS = {path: nodes for path, nodes in CALLABLE.items() if not stubs.is_property(nodes[0])}
# Calls that wait without a limit or briefly, and have no twin for asyncio: docs/how-to/asyncio.md describes the
# alternative.
NO_TWIN = {"connect", "items"}


def ids(path):
    return ".".join(path)


def parameters(node):
    """Names, kinds and defaults of a definition's parameters."""
    given, kinds = node.args, inspect.Parameter
    plain = [*given.posonlyargs, *given.args]
    defaults = [inspect.Parameter.empty] * (len(plain) - len(given.defaults)) + [ast.literal_eval(d) for d in given.defaults]
    found = [(a.arg, kinds.POSITIONAL_OR_KEYWORD, d) for a, d in zip(plain, defaults, strict=True)]
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append((argument.arg, kinds.KEYWORD_ONLY, kinds.empty if default is None else ast.literal_eval(default)))
    return [one for one in found if one[0] not in ("self", "cls")]


def is_nothing(node):
    text = ast.unparse(node.returns)
    return text in ("None", "NoReturn") or text.endswith("Any, None]")


@pytest.mark.parametrize("path", [path for path in MEMBERS if path[0] not in SILENT], ids=ids)
def test_the_stub_has_the_text_of_the_module(path):
    text = ast.get_docstring(MEMBERS[path][0])
    assert text and text == stubs.docstring(path), "bindings/python/backend/stub.py reads the doc comments otherwise than PyO3"
    assert not any(ast.get_docstring(other) for other in MEMBERS[path][1:])


@pytest.mark.parametrize("path", METHODS, ids=ids)
def test_docstrings_fit_their_signatures(path):
    signature = stubs.signature(path)
    doc = stubs.docstring(path)
    check(doc, list(signature.parameters), not is_nothing(METHODS[path][0]))
    assert ("TimeoutError" in doc) == bool({"timeout", "wait"} & set(signature.parameters))


@pytest.mark.parametrize("path", METHODS, ids=ids)
def test_the_stub_has_the_signature_of_the_module(path):
    signature = stubs.signature(path)
    real = [(p.name, p.kind, p.default) for p in signature.parameters.values()]
    for node in METHODS[path]:
        stub = parameters(node)
        assert [one[:2] for one in stub] == [one[:2] for one in real]
        for (name, _, default), (_, _, expected) in zip(stub, real, strict=True):
            # An overload may require an optional argument.
            assert default == expected or (len(METHODS[path]) > 1 and default is inspect.Parameter.empty), name


@pytest.mark.parametrize("path", METHODS, ids=ids)
def test_no_parameter_hides_a_builtin(path):
    hidden = [name for name in stubs.signature(path).parameters if hasattr(builtins, name)]
    assert hidden == []


@pytest.mark.parametrize("path", METHODS, ids=ids)
def test_calls_that_wait_have_a_twin(path):
    """With the same parameters, for asyncio."""
    signature = stubs.signature(path)
    if path[-1].endswith("_async") or not {"timeout", "wait"} & set(signature.parameters) or path[-1] in NO_TWIN:
        return
    assert stubs.signature((*path[:-1], path[-1] + "_async")) == signature


def test_one_table_names_the_twins():
    page = pathlib.Path(__file__).parents[3] / "docs" / "how-to" / "asyncio.md"
    if not page.exists():
        pytest.skip("the manual is not here")
    named = set(re.findall(r"(\w+_async)\(", page.read_text()))
    assert named == {path[-1] for path in METHODS if path[-1].endswith("_async")}


@pytest.mark.parametrize("path", [path for path in MEMBERS if ">>>" in (ast.get_docstring(MEMBERS[path][0]) or "")], ids=ids)
def test_examples(path, client, broker):
    names = {"np": np, "tensorlend": tensorlend, "client": client}
    test = doctest.DocTestParser().get_doctest(stubs.docstring(path), names, ids(path), None, 0)
    assert test.examples and doctest.DocTestRunner().run(test).failed == 0
