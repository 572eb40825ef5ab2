"""Fixtures for pytest: a daemon in the test process, and a client of this daemon for each test. The installed package
registers this module as a plugin of pytest.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from typing import Any

import pytest

import tensorlend

__all__ = ["tensorlend_client", "tensorlend_config", "tensorlend_daemon"]

#: The key of a test's stash: whether the call of the test has passed.
_passed = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """Records whether the test passed, because the traceback of a failed test keeps its leases."""
    outcome = yield
    if call.when == "call":
        item.stash[_passed] = outcome.get_result().passed


def pytest_configure(config: pytest.Config) -> None:
    """Registers the mark of tests that may leave leases."""
    config.addinivalue_line("markers", "tensorlend_leaks: the test may leave leases behind")


@pytest.fixture(scope="session")
def tensorlend_config() -> str | None:
    """The daemon's configuration in TOML. Override this fixture in `conftest.py`.

    Returns
    -------
    str or None
        None, the default configuration.
    """
    return None


@pytest.fixture(scope="session")
def tensorlend_daemon(tensorlend_config: str | None) -> Iterator[tensorlend.Embedded]:
    """Starts a daemon in the test process, for the whole session.

    Parameters
    ----------
    tensorlend_config : str or None
        The fixture with the daemon's configuration.

    Yields
    ------
    Embedded
        The daemon.
    """
    with tensorlend.embedded(tensorlend_config) as daemon:
        yield daemon


@pytest.fixture
def tensorlend_client(
    request: pytest.FixtureRequest, tensorlend_daemon: tensorlend.Embedded, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tensorlend.Client]:
    """Connects a client to the daemon, for one test.

    The fixture sets TENSORLEND_SOCKET, so that `tensorlend.connect()` in the test and in its child
    processes finds the daemon. After the test, the fixture deletes names, lists and streams. A
    passed test that leaves leases behind then fails. The mark `tensorlend_leaks` permits such
    leases.

    Parameters
    ----------
    request : pytest.FixtureRequest
        The fixture of pytest.
    tensorlend_daemon : Embedded
        The fixture with the daemon.
    monkeypatch : pytest.MonkeyPatch
        The fixture of pytest.

    Yields
    ------
    Client
        The client.
    """
    monkeypatch.setenv("TENSORLEND_SOCKET", tensorlend_daemon.address)
    with tensorlend_daemon.connect(label=request.node.name[:32]) as client:
        yield client
        left = _leased(client)
        # Do not check a failed test for leaks, because its traceback holds leases.
        is_checked = request.node.stash.get(_passed, False) and request.node.get_closest_marker("tensorlend_leaks") is None
        _clean(client)
    if left and is_checked:
        pytest.fail(
            f"the test left leases on {left} bytes: release them or use `with`, or let the leases and the arrays that view them "
            "go out of scope (mark the test with tensorlend_leaks to permit it)",
            pytrace=False,
        )


def _leased(client: tensorlend.Client) -> int:
    """Returns the bytes of this namespace's tensors on which a process has a lease. Collects reference cycles first."""
    left = client.leased()
    if left:
        gc.collect()
        left = client.leased()
    return left


def _clean(client: tensorlend.Client) -> None:
    """Deletes all names, lists and streams of the client's namespace."""
    client.delete(glob="*")
    for name, _ in client.lists():
        client.clear(name)
    for name, _ in client.streams():
        try:
            client.delete_stream(name)
        except tensorlend.ConflictError:
            # Ignore the error. Another client, which the test left open, produces the stream.
            continue
