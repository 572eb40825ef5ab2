"""What type checkers say of programs that use the package."""

import pathlib
import re
import shutil
import subprocess
import sys
import typing

import programs
import pytest

import tensorlend
from tensorlend import _types

HERE = pathlib.Path(__file__).parent
STUBS = sorted(pathlib.Path(tensorlend.__file__).parent.glob("*.pyi"))


def mypy(file, tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    done = programs.run("-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", "--show-error-codes", file, cwd=tmp_path)
    return done.stdout + done.stderr, {int(line) for line in re.findall(rf"^{file.name}:(\d+): error", done.stdout, re.MULTILINE)}


def pyright(file, tmp_path):
    pytest.importorskip("pyright", reason="pyright is not installed")
    try:
        run = [sys.executable, "-m", "pyright"]
        subprocess.run([*run, "--version"], capture_output=True, timeout=300, check=True)
    except (subprocess.SubprocessError, OSError):
        pytest.skip("pyright cannot be run or fetched: it needs npm's registry")
    # Copied to the program's folder, because pyright does not search every environment.
    package = pathlib.Path(tensorlend.__file__).parent
    shutil.copytree(package, tmp_path / "tensorlend", ignore=shutil.ignore_patterns("*.so", "loader", "smartredis", "__pycache__"))
    done = subprocess.run(
        [*run, "--pythonpath", sys.executable, str(file)], capture_output=True, text=True, cwd=tmp_path, timeout=600
    )
    return done.stdout + done.stderr, {int(line) for line in re.findall(rf"{file.name}:(\d+):\d+ - error", done.stdout)}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_users_program(checker, tmp_path):
    file = shutil.copy(HERE / "typed.py", tmp_path)
    text, errors = checker(pathlib.Path(file), tmp_path)
    assert errors == set(), text
    assert "error" not in re.sub(r"0 errors", "", text), text


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_mistakes_are_found(checker, tmp_path):
    file = pathlib.Path(shutil.copy(HERE / "typed_wrong.py", tmp_path))
    text, errors = checker(file, tmp_path)
    marked = {at for at, line in enumerate(file.read_text().splitlines(), 1) if line.endswith("# mistake")}
    assert errors == marked, text


def of(kind):
    """The keys of a TypedDict, with those of the dicts in its lists."""
    hints = typing.get_type_hints(kind)
    inner = {key: typing.get_args(hint)[0] for key, hint in hints.items() if typing.get_origin(hint) is list}
    plain = {key: dict if typing.is_typeddict(hint) else hint for key, hint in hints.items()}
    return {key: of(inner[key]) if key in inner else hint for key, hint in plain.items()}


def test_metrics_have_the_type_of_the_stub(client):
    client.put("x", [1.0])
    stat, keys = client.stat(), of(_types.Stat)
    assert stat.keys() == keys.keys() and stat["uids"] and stat["namespaces"]
    for key, kind in keys.items():
        if isinstance(kind, dict):
            assert all({name: type(value) for name, value in one.items()} == kind for one in stat[key]), key
        else:
            assert type(stat[key]) is kind, key
    reasons = stat["refusals_by_reason"]
    assert {name: type(value) for name, value in reasons.items()} == of(_types.StatRefusals)


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.name)
def test_no_union_turns_checking_off(stub):
    assert re.findall(r"\|\s*Any\b|\bAny\s*\||Union\[[^\]]*\bAny\b", stub.read_text()) == []
