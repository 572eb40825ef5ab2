"""The package as pip builds it and as it is installed."""

import ast
import graphlib
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import tomllib

import pytest
from programs import run

PACKAGE = pathlib.Path(__file__).parents[1]


def hook(name, tmp_path, **environment):
    """Calls a hook of the build backend."""
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE / "backend"), "HOME": str(tmp_path), **environment}
    return run("-c", f"import tensorlend_build as build; print(build.{name}())", env=variables)


@pytest.mark.parametrize("kind", ["wheel", "editable", "sdist"])
def test_without_rust_one_line_says_what_is_missing(tmp_path, kind):
    done = hook(f"get_requires_for_build_{kind}", tmp_path, PATH=str(tmp_path), CARGO_HOME=str(tmp_path), CC="cc")
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "needs Rust (cargo; https://rustup.rs) and a C compiler" in line and "/releases" in line


def test_pip_without_rust_shows_no_traceback(tmp_path):
    """`pip install` of the sources, with nothing on the PATH."""
    pytest.importorskip("pip", reason="pip is not installed")
    if not (PACKAGE / "Cargo.toml").is_file():
        pytest.skip("the sources are not here")
    sources = shutil.copytree(PACKAGE, tmp_path / "python", ignore=shutil.ignore_patterns("tests", "__pycache__", "*.so"))
    offline = ["--no-build-isolation", "--no-deps", "--no-index", "--no-cache-dir", "--disable-pip-version-check"]
    environment = {"HOME": str(tmp_path), "PATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = run("-m", "pip", "install", *offline, "--target", tmp_path / "out", sources, env=environment)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "Traceback" not in said and len(said.splitlines()) < 25, said
    (ours,) = [line.strip() for line in said.splitlines() if "tensorlend:" in line]
    assert ours.startswith("tensorlend: building the package needs Rust (cargo; https://rustup.rs)") and "/releases" in ours


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
        assert (PACKAGE / name).read_text() == (PACKAGE.parents[1] / name).read_text()


def test_the_wheel_brings_its_licences():
    try:
        files = importlib.metadata.distribution("tensorlend").files or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package was not installed from a wheel")
    assert {file.name for file in files} >= {"LICENSE-MIT", "LICENSE-APACHE"}


def test_modules_import_downwards_only():
    """No circle, not even of imports in functions: static_order would raise CycleError."""
    root = PACKAGE / "tensorlend"
    paths = {path.relative_to(PACKAGE).with_suffix(""): path for path in root.rglob("*.py")}
    files = {".".join(name.parts).removesuffix(".__init__"): path for name, path in paths.items()}
    graph = {}
    for name, path in files.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        imported = graph[name] = set()
        parts = ast.parse(path.read_text()).body
        # Types alone may refer to each other.
        parts = [part for part in parts if not (isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING")]
        for node in (node for part in parts for node in ast.walk(part)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                below = {f"{base}.{alias.name}" for alias in node.names} & {*files, "tensorlend._native"}
                imported |= below or {base}
        imported -= {name}
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert len(files) > 50 and set(files) <= set(order)
