"""A machine with a simulated device: a daemon and programs with a fake driver, each in a process of its own."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from programs import DAEMON
from waiting import eventually, listens

HERE = pathlib.Path(__file__).parent
# Each program gets a segment, which exists as long as one of its values is published.
CONFIG = '[cuda]\ndevices = ["all"]\nsegment_bytes = "4MiB"\nbytes_max = "900MiB"\n'


def _sources() -> pathlib.Path:
    return HERE.parents[2]


def blocks(mark: str) -> list[str]:
    """The programs of the manual with this mark."""
    page = _sources() / "docs" / "gpu.md"
    found: list[str] = re.findall(rf"^```python {mark}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return found


def stand_in() -> pathlib.Path:
    """The library of the fake driver; skips the test if it is not built."""
    named = os.environ.get("TENSORLEND_FAKECUDA")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or _sources() / "target")
    places = [pathlib.Path(named)] if named else [target / kind / "libfakecuda.so" for kind in ("debug", "release")]
    for place in places:
        if place.is_file():
            return place.resolve()
    pytest.skip(f"no stand-in for the driver at {places[0]}: cargo build -p tensorlend-fakecuda, or TENSORLEND_FAKECUDA")


class World:
    """A folder that represents one machine: its programs share its devices."""

    def __init__(self, folder: pathlib.Path, config: str = CONFIG, **settings: str) -> None:
        library = stand_in()
        self.folder = folder
        for name in ("libcuda.so", "libcuda.so.1"):
            (folder / name).symlink_to(library)
        self.socket = folder / "s"
        self.config = folder / "tensorlendd.toml"
        self.config.write_text(config)
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FAKECUDA")},
            "LD_LIBRARY_PATH": str(folder),
            "FAKECUDA_DIR": str(folder),
            "TENSORLEND_SOCKET": str(self.socket),
            "PYTHONPATH": path,
            **settings,
        }
        self.daemon: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """Starts the daemon."""
        command = [sys.executable, "-c", DAEMON]
        command += ["--socket", str(self.socket), "--config", str(self.config)]
        arguments = arguments or ("--allow-fake-cuda",)
        log = open(self.folder / "daemon.log", "wb")
        self.daemon = subprocess.Popen([*command, *arguments], env=self.env, stderr=log, stdin=subprocess.DEVNULL)
        eventually((self.folder / "daemon.log").read_text, lambda: listens(self.socket, self.daemon))

    def stop(self) -> None:
        if self.daemon is not None:
            self.daemon.terminate()
            self.daemon.wait(60)

    def begin(self, program: str, *arguments: str, **settings: str) -> "subprocess.Popen[str]":
        """Starts a program with this source on this machine."""
        command = [sys.executable, "-X", "faulthandler", "-c", program, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env={**self.env, **settings}, text=True, stdin=pipe, stdout=pipe, stderr=pipe
        )

    def run(self, program: str, *arguments: str, timeout: float = 120, **settings: str) -> str:
        """Runs a program and returns its output."""
        return finish(self.begin(program, *arguments, **settings), timeout)

    def gate(self, pid: int | str | None = None) -> pathlib.Path:
        """The file that holds the streams of one process, or of all processes, as long as it exists."""
        return self.folder / ("gate" if pid is None else f"gate.{pid}")


def finish(program: "subprocess.Popen[str]", timeout: float = 120) -> str:
    try:
        out, err = program.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        program.kill()
        out, err = program.communicate()
        raise AssertionError(f"it did not end within {timeout} s\n{out}\n{err}") from None
    assert program.returncode == 0, f"exit status {program.returncode}\n{out}\n{err}"
    return out
