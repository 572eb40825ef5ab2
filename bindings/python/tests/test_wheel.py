"""The wheel that scripts/test has built, as pip, uv and pipx install it."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import programs
import pytest

SCRIPT = """import tensorlend
with tensorlend.embedded() as broker, broker.connect() as client:
    client.put("weights", [1.0, 2.0])
    print(client.get("weights").numpy().sum())"""


def called(*words: object, **variables: str) -> str:
    """Runs a command that must succeed, without this environment's packages and settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_", "PIPX_", "UV_", "VIRTUAL_ENV"))}
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, env=kept | variables, timeout=600)
    assert done.returncode == 0, f"{words}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def by_pip(wheel: pathlib.Path, packages: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    called(sys.executable, "-m", "venv", to)
    called(to / "bin/pip", "install", "--quiet", "--no-index", "--find-links", packages, wheel)
    return to / "bin"


def by_uv(wheel: pathlib.Path, packages: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    cache = {"UV_CACHE_DIR": str(to.parent / "cache"), "UV_OFFLINE": "1"}
    called(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, to, **cache)
    called(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", to / "bin/python", "--no-index", "--find-links", packages, wheel, **cache)
    return to / "bin"


def by_pipx(wheel: pathlib.Path, packages: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    home = {"PIPX_HOME": str(to), "PIPX_BIN_DIR": str(to / "bin"), "PIPX_MAN_DIR": str(to / "man"), "PIPX_DEFAULT_BACKEND": "pip"}
    arguments = f"--no-index --find-links {packages}"
    called(sys.executable, "-m", "pipx", "install", "--quiet", "--python", sys.executable, "--pip-args", arguments, wheel, **home)
    return to / "bin"


@pytest.mark.parametrize("install", [by_pip, by_uv, by_pipx])
def test_the_wheel_brings_all_programs(tmp_path, install):
    wheel = os.environ.get("TENSORLEND_WHEEL")
    if not wheel:
        pytest.skip("no wheel: scripts/test builds one and sets TENSORLEND_WHEEL")
    name = install.__name__.removeprefix("by_")
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed (pip install {name})")
    packages = tmp_path / "packages"
    found = programs.run("-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--dest", packages, "numpy", "pip")
    if found.returncode != 0:
        pytest.skip("pip cannot download numpy and pip, with which pipx begins")
    bin = install(pathlib.Path(wheel), packages, tmp_path / name)
    for program in ["tensorlend", "tensorlendd"]:
        assert called(bin / program, "--version").startswith(program + " ")
    for command in ["top", "web", "demo"]:
        assert f"tensorlend {command}" in called(bin / "tensorlend", command, "--help")
    # pipx gives programs alone.
    if (bin / "python").exists():
        assert called(bin / "python", "-c", SCRIPT) == "3.0\n"
