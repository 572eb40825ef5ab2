"""Programs that run in a Python of their own."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from waiting import LONG, eventually, listens

#: The source of a program that is the daemon.
DAEMON = "import sys; from tensorlend._programs import daemon; sys.exit(daemon())"


def run(*words: object, timeout: float = LONG, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs Python with these words on its command line, and returns its output."""
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=timeout, **options)


def succeeds(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs Python as `run` does. Its exit status must be 0."""
    done = run(*words, **options)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def end_daemons(folder: pathlib.Path) -> None:
    """Kills the daemons that clients have started at a socket in the folder, and their fd stores."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            is_daemon = b"--detached" in words or b"--fd-store" in words
            if is_daemon and any(word.startswith(os.fsencode(folder) + b"/") for word in words):
                os.kill(int(process.name), signal.SIGKILL)


@contextlib.contextmanager
def daemon(path: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a daemon with this socket, and kills it at the end, also if it is stopped."""
    process = subprocess.Popen([sys.executable, "-c", DAEMON, "--socket", str(path)], stderr=subprocess.DEVNULL)
    try:
        eventually("a daemon that listens", lambda: listens(path, process))
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
