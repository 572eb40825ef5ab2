"""maturin as pip calls it (PEP 517), after a look for what it needs.

Without Rust, maturin ends in some eighty lines of Python's; pip shows what these functions print instead.
"""

import os
import pathlib
import shutil
import sys
from typing import Any

RELEASES = "https://github.com/tensorlend/tensorlend/releases"

#: Where rustup puts cargo, which a shell may not have on its PATH yet.
CARGO_FOLDER = os.path.join(os.environ.get("CARGO_HOME") or os.path.expanduser("~/.cargo"), "bin")


def _check() -> None:
    if shutil.which("cargo") is None and os.access(os.path.join(CARGO_FOLDER, "cargo"), os.X_OK):
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), CARGO_FOLDER])
    missing = []
    if shutil.which("cargo") is None:
        missing.append("Rust (cargo; https://rustup.rs)")
    if shutil.which(os.environ.get("CC", "cc")) is None:
        missing.append("a C compiler (cc; apt-get install gcc)")
    if missing:
        sys.exit(f"tensorlend: building the package needs {' and '.join(missing)}; wheels that need neither are at {RELEASES}")


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    _check()
    return []


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    _check()
    return []


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    _check()
    return []


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    return _call("prepare_metadata_for_build_wheel", metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Any = None) -> str:
    return _call("prepare_metadata_for_build_editable", metadata_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    return _call("build_wheel", wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    return _call("build_editable", wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    name = _call("build_sdist", sdist_directory, config_settings)
    import offline

    offline.complete(pathlib.Path(sdist_directory) / name)
    return name


def _call(hook: str, *arguments: Any) -> str:
    _check()
    import maturin

    done: str = getattr(maturin, hook)(*arguments)
    return done
