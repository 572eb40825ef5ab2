"""What the documentation shows works."""

import doctest
import importlib.util
import pathlib
import re

import pytest

import tensorlend

PACKAGE = pathlib.Path(__file__).parents[1]
ROOT = PACKAGE.parents[1]
PAGES = [ROOT / "README.md", PACKAGE / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}:{number}")
    for page in PAGES
    if page.exists()
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL), 1)
]


def test_the_packages_example():
    tested = doctest.testmod(tensorlend)
    assert tested.attempted > 5 and tested.failed == 0


def test_the_manual_is_found():
    if not (ROOT / "docs").exists():
        pytest.skip("the manual is not here")
    assert len(BLOCKS) > 10


@pytest.mark.parametrize("block", BLOCKS)
def test_the_pages_examples(block, client, broker, script, monkeypatch):
    """Each block is a program of its own; a broker runs."""
    monkeypatch.setenv("TENSORLEND_SOCKET", broker.address)
    script(block)


def test_every_public_thing_says_what_it_does():
    silent = []
    for name in tensorlend.__all__:
        thing = getattr(tensorlend, name)
        if name != "__version__" and not thing.__doc__:
            silent.append(name)
        if isinstance(thing, type) and thing.__module__ == "tensorlend._native":
            for member, value in vars(thing).items():
                if not member.startswith("_") and not value.__doc__:
                    silent.append(f"{name}.{member}")
    assert silent == []


def test_it_is_typed():
    assert (pathlib.Path(tensorlend.__file__).parent / "py.typed").exists()


def test_stubs_name_what_there_is(monkeypatch):
    stubtest = pytest.importorskip("mypy.stubtest", reason="mypy is not installed")
    monkeypatch.setenv("MYPYPATH", str(PACKAGE))
    allowlist = PACKAGE / "tests" / "stubtest-allowlist.txt"
    arguments = ["tensorlend._native", "--allowlist", str(allowlist), "--ignore-unused-allowlist"]
    if importlib.util.find_spec("torch") is None:
        arguments += ["--mypy-config-file", str(PACKAGE / "tests" / "mypy-without-torch.ini")]
    options = stubtest.parse_options(arguments)
    assert stubtest.test_stubs(options) == 0
