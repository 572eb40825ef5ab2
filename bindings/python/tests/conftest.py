"""A broker for each test, in this process, and a client of it."""

import gc
import multiprocessing
import os
import pathlib
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator

import programs
import pytest
from waiting import eventually

import tensorlend

# A shell starts background jobs with SIGINT ignored, and Python then leaves it so.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The runtime folder for the daemon that programs without a socket start. Test files copy the environment when they are imported.
HOME = tempfile.TemporaryDirectory(prefix="tensorlend-home-")
os.environ["XDG_RUNTIME_DIR"] = HOME.name


def pytest_sessionfinish() -> None:
    programs.end_daemons(pathlib.Path(HOME.name))
    HOME.cleanup()


@pytest.fixture
def broker() -> Iterator[tensorlend.Embedded]:
    with tensorlend.embedded() as broker:
        yield broker


@pytest.fixture
def client(broker: tensorlend.Embedded) -> Iterator[tensorlend.Client]:
    with broker.connect(label="test") as client:
        yield client


@pytest.fixture
def left(client: tensorlend.Client) -> Iterator[tensorlend.Client]:
    """The client, which must be alone with no names, streams and leases after the test; and there must be no processes."""
    before = set(multiprocessing.active_children())
    yield client
    gc.collect()
    eventually("the end of all other clients", lambda: client.stat()["clients"] == 1)
    assert set(multiprocessing.active_children()) <= before
    assert client.list() == [] and list(client.streams()) == [] and client.leased() == 0


Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def script() -> Script:
    """Runs a program in a Python of its own; its arguments are words."""

    def run(source: str, *arguments: str, timeout: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
        return (programs.succeeds if check else programs.run)("-c", source, *arguments, timeout=timeout)

    return run
