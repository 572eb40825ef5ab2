"""The command line tool, for tests that run it."""

import os
import pathlib
import sys


def command() -> list[str]:
    """The tool's command: the built one where there is one, else the one that the package carries along."""
    built = os.environ.get("TENSORLEND_BIN_DIR")
    return [str(pathlib.Path(built) / "tensorlend")] if built else [sys.executable, "-m", "tensorlend"]
