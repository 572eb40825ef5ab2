"""A broker for each test, in this process, and a client of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import tensorlend

# A shell starts background jobs with SIGINT ignored, and Python then leaves it so.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def broker() -> Iterator[tensorlend.Embedded]:
    with tensorlend.embedded() as broker:
        yield broker


@pytest.fixture
def client(broker: tensorlend.Embedded) -> Iterator[tensorlend.Client]:
    with broker.connect(label="test") as client:
        yield client


Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def script() -> Script:
    """Runs a program in a Python of its own; its arguments are words."""

    def run(source: str, *arguments: str, timeout: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", source, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=os.environ)
        if check:
            assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
