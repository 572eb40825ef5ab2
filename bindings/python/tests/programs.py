"""Programs that run in a Python of their own."""

import contextlib
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
