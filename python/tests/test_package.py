"""The package as pip builds it and as it is installed."""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

PACKAGE = pathlib.Path(__file__).parents[1]


def hook(name, tmp_path, **environment):
    """Calls a hook of the build backend."""
    return subprocess.run(
        [sys.executable, "-c", f"import tensorlend_build as build; print(build.{name}())"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE / "backend"), "HOME": str(tmp_path), **environment},
    )


@pytest.mark.parametrize("kind", ["wheel", "editable", "sdist"])
def test_without_rust_one_line_says_what_is_missing(tmp_path, kind):
    done = hook(f"get_requires_for_build_{kind}", tmp_path, PATH=str(tmp_path), CARGO_HOME=str(tmp_path), CC="cc")
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "needs Rust (cargo; https://rustup.rs) and a C compiler" in line and "/releases" in line


def test_cargo_is_found_where_rustup_puts_it(tmp_path):
    for program in ("bin/cargo", "cc"):
        path = tmp_path / program
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    done = hook("get_requires_for_build_wheel", tmp_path, PATH=str(tmp_path), CARGO_HOME=str(tmp_path), CC="cc")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_project_names_every_python_that_it_serves():
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    versions = [int(found[1]) for line in project["classifiers"] if (found := re.search(r":: 3\.(\d+)$", line))]
    assert versions == list(range(11, versions[-1] + 1)) and project["requires-python"] == ">=3.11"
    for name in project["license-files"]:
        assert (PACKAGE / name).read_text() == (PACKAGE.parent / name).read_text()


def test_the_wheel_brings_its_licences():
    try:
        files = importlib.metadata.distribution("tensorlend").files or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package was not installed from a wheel")
    assert {file.name for file in files} >= {"LICENSE-MIT", "LICENSE-APACHE"}
