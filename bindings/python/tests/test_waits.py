"""Waits let other threads run, and Ctrl-C ends them."""

import contextlib
import os
import pathlib
import signal
import tempfile
import threading
import time

import numpy as np
import pytest
from programs import daemon

import tensorlend


@pytest.fixture
def waits(client):
    stream = client.stream("s", capacity=1)
    subscription = client.subscribe("s", start="next")
    other = client.stream("full", capacity=1)
    lagging = client.subscribe("full", start="next")
    other.send(0)
    silent = client.serve("silent")
    client.put_model("nowhere", b"no runner reads this")

    def answer():
        caller, asked = client.caller("silent"), []
        listener = threading.Thread(target=lambda: asked.append(silent.recv(30)))
        listener.start()
        try:
            return caller.call(1)
        finally:
            listener.join()
            assert all(request.numpy() == 1 for request in asked)

    yield {
        "recv": subscription.recv,
        "iteration": lambda: next(subscription),
        "wait_for": lambda: client.wait_for("nothing"),
        "wait_newer": lambda: client.wait_newer("nothing"),
        "wait_length": lambda: client.wait_length("l", 1),
        "send": lambda: other.send(1),
        "wait_subscribers": lambda: stream.wait_subscribers(9),
        "subscribe": lambda: client.subscribe("nothing", wait=600),
        "serve": client.serve("never called").recv,
        "call": lambda: client.caller("nobody").call(1),
        "answer": answer,
        "model": lambda: client.model("nowhere").run({"x": np.zeros(3)}, timeout=None),
    }
    lagging.close()


WAITS = [
    "recv",
    "iteration",
    "wait_for",
    "wait_newer",
    "wait_length",
    "send",
    "wait_subscribers",
    "subscribe",
    "serve",
    "call",
    "answer",
    "model",
]


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_it(waits, name):
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        waits[name]()
    assert 0.1 < time.monotonic() - began


@pytest.mark.parametrize("name", WAITS)
def test_other_threads_go_on(waits, name):
    def wait():
        with contextlib.suppress(tensorlend.Error):
            waits[name]()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.05)
    # A wait that kept the interpreter for slices of 50 ms would allow one step in 30 ms.
    until, steps = time.monotonic() + 60, 0
    while steps < 10:
        assert time.monotonic() < until, "the wait keeps the interpreter"
        steps, end = 0, time.monotonic() + 0.03
        while time.monotonic() < end:
            time.sleep(0.0005)
            steps += 1
    assert thread.is_alive()


def test_a_waiter_does_not_hold_up_others_on_the_same_subscription(client):
    client_stream = client.stream("s")
    subscription = client.subscribe("s", start="next")
    thread = threading.Thread(target=lambda: pytest.raises(tensorlend.Error, subscription.recv), daemon=True)
    thread.start()
    time.sleep(0.05)
    ticks, stop = [time.monotonic()], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.0005)

    ticker = threading.Thread(target=tick)
    ticker.start()
    # The thread that requests the interpreter may wait for one slice of 50 ms; the third thread must not wait for each
    # of its slices. On a busy machine some of the rounds pass.
    until, passed = time.monotonic() + 60, False
    while not passed:
        assert time.monotonic() < until, "the others wait for the waiter's slices"
        end, first, asked = time.monotonic() + 0.2, len(ticks) - 1, 0
        while time.monotonic() < end:
            assert subscription.try_recv() is None and subscription.lost == 0
            asked += 1
        seen = ticks[first:]
        stood_still = [b - a for a, b in zip(seen, seen[1:], strict=False) if b - a > 0.02]
        passed = asked > 2 and len(seen) > 10 and len(stood_still) < 2
    stop.set()
    ticker.join()
    subscription.close()
    client_stream.close()
    thread.join(60)
    assert not thread.is_alive()


def test_signal_handlers_run_during_a_wait(client):
    ran = []
    before = signal.signal(signal.SIGALRM, lambda *_: ran.append(time.monotonic()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(tensorlend.TimeoutError):
            client.wait_for("nothing", 0.5)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(ran) == 1


def test_threads_on_one_draft(client):
    """The first thread publishes the name; the others get an error."""
    for _ in range(50):
        draft, said, barrier = client.create(1000), [], threading.Barrier(4)

        def work(number, draft=draft, said=said, barrier=barrier):
            barrier.wait()
            try:
                draft.array[:] = number
                draft.publish("x")
                said.append("published")
            except (tensorlend.ClosedError, ValueError):
                said.append("late")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        [thread.start() for thread in threads]
        [thread.join(30) for thread in threads]
        assert sorted(said) == ["late"] * 3 + ["published"]
        assert client.get("x").shape == (1000,)


def test_threads_on_one_lease(client):
    client.put("x", list(range(100)))
    for _ in range(50):
        lease, said = client.get("x"), []

        def work(lease=lease, said=said):
            try:
                for _ in range(20):
                    assert lease.numpy().sum() == 4950
                lease.release()
            except tensorlend.ClosedError as error:
                said.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join(30) for thread in threads]
        assert all("released" in text for text in said) and not lease.valid


def ended_by(waits, name, end):
    """Returns the exception of a wait that another thread ends."""
    timer = threading.Timer(0.2, end)
    timer.start()
    try:
        with pytest.raises(tensorlend.DisconnectedError) as caught:
            waits[name]()
    finally:
        timer.join()
    return str(caught.value)


@pytest.mark.parametrize("name", WAITS)
def test_the_clients_end_ends_it(waits, client, name):
    assert ended_by(waits, name, client.close) == "the client was closed: connect again"


@pytest.mark.parametrize("name", WAITS)
def test_the_daemons_end_ends_it(waits, broker, name):
    assert "connect again" in ended_by(waits, name, broker.close)


def test_a_killed_daemon_ends_a_wait():
    """A killed daemon leaves its socket, so that clients look for another daemon for some seconds."""
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        socket = pathlib.Path(folder, "socket")
        with daemon(socket) as process, tensorlend.connect(socket) as client:
            client.put("x", 1)
            assert client.get("x").numpy() == 1
            process.kill()
            process.wait()
            with pytest.raises(tensorlend.DisconnectedError, match="connect again"):
                client.wait_for("nothing")
            assert client.get("x").numpy() == 1


def test_what_is_there_can_be_taken_from_a_closed_client(client):
    stream = client.stream("s")
    subscription = client.subscribe("s", start="next")
    stream.send(1)
    client.close()
    assert subscription.recv(60).numpy() == 1
    with pytest.raises(tensorlend.DisconnectedError, match="closed"):
        subscription.recv()
