"""Completes a source distribution, so that it builds without a network.

maturin packs the crates of the workspace and their tests. This module adds the sources of all other crates (`cargo vendor`) and
removes what only tests need. Cargo reads the manifests of all crates, so those for other systems stay, without their sources.
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
from typing import Any

TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]
CONFIG = '[source.crates-io]\nreplace-with = "vendored"\n\n[source.vendored]\ndirectory = "vendor"\n'
#: The same sources give the same bytes.
TIME = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))


def complete(sdist: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        with tarfile.open(sdist) as archive:
            archive.extractall(work)
        (root,) = pathlib.Path(work).iterdir()
        without_tests(root)
        # The first call removes crates from the lock file, and changes no version.
        packages = [it for target in TARGETS for it in metadata(root, target)]
        subprocess.run(["cargo", "vendor", "--quiet", "--locked", "--versioned-dirs", "vendor"], cwd=root, check=True, stdout=subprocess.DEVNULL)
        needed = {f"{it['name']}-{it['version']}" for it in packages if it["source"]}
        for crate in (root / "vendor").iterdir():
            if crate.name not in needed:
                empty(crate)
        (root / ".cargo").mkdir()
        (root / ".cargo/config.toml").write_text(CONFIG)
        pack(root, sdist)


def metadata(root: pathlib.Path, target: str) -> list[dict[str, Any]]:
    command = ["cargo", "metadata", "--format-version=1", "--filter-platform", target]
    packages: list[dict[str, Any]] = json.loads(subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    return packages


def without_tests(root: pathlib.Path) -> None:
    """Removes the dependencies of tests, and the crates that only tests need."""
    for manifest in root.rglob("Cargo.toml"):
        text = manifest.read_text()
        manifest.write_text(re.sub(r"^\[dev-dependencies\]\n(?:(?!\[).*\n?)*", "", text, flags=re.MULTILINE))
    workspace = root / "Cargo.toml"
    workspace.write_text(re.sub(r"^members = .*", 'members = ["bindings/python"]', workspace.read_text(), flags=re.MULTILINE))
    needed = {pathlib.Path(it["manifest_path"]) for it in metadata(root, TARGETS[0]) if not it["source"]}
    for manifest in list(root.rglob("Cargo.toml")):
        if manifest != workspace and manifest not in needed:
            shutil.rmtree(manifest.parent, ignore_errors=True)


def empty(crate: pathlib.Path) -> None:
    """Removes the sources of a crate that no build on Linux compiles."""
    checksum = crate / ".cargo-checksum.json"
    package = json.loads(checksum.read_text())["package"]
    manifest = (crate / "Cargo.toml").read_bytes()
    shutil.rmtree(crate)
    (crate / "src").mkdir(parents=True)
    (crate / "src/lib.rs").touch()
    (crate / "Cargo.toml").write_bytes(manifest)
    checksum.write_text(json.dumps({"files": {}, "package": package}))


def pack(root: pathlib.Path, sdist: pathlib.Path) -> None:
    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = TIME, 0, 0, "", ""
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    new = sdist.with_suffix(".new")
    with gzip.GzipFile("", "wb", fileobj=new.open("wb"), mtime=TIME) as packed, tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(it for it in root.rglob("*") if not it.is_dir()):
            archive.add(path, str(pathlib.Path(root.name) / path.relative_to(root)), filter=plain)
    new.replace(sdist)
