"""The programs that the package carries along, and a daemon that is a process of its own."""

import contextlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tensorlend

DAEMON = "from tensorlend._programs import daemon; daemon()"


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


@pytest.fixture
def daemon(tmp_path):
    """A daemon and its socket."""
    socket = tmp_path / "s"
    process = subprocess.Popen([sys.executable, "-c", DAEMON, "--socket", str(socket)], stderr=subprocess.DEVNULL)
    try:
        until(socket.exists)
        yield process, socket
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()


def tool(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "tensorlend", *arguments], capture_output=True, text=True, timeout=60, **options
    )


def test_the_tool(broker, client, monkeypatch):
    monkeypatch.setenv("TENSORLEND_SOCKET", broker.address)
    client.put("weights", np.zeros((2, 3)))
    assert "weights" in tool("ls").stdout
    assert tensorlend.__version__ in tool("--version").stdout
    missing = tool("get", "nothing", "-o", "/dev/null")
    assert missing.returncode == 4 and "nothing" in missing.stderr
    assert tool("nonsense").returncode == 2


def test_ctrl_c_ends_the_tool(broker):
    command = [sys.executable, "-m", "tensorlend", "--socket", broker.address, "watch", "nothing"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(10) != 0


def test_a_daemon_of_its_own(daemon):
    process, socket = daemon
    with tensorlend.connect(socket) as client:
        client.put("x", [1, 2])
        lease = client.get("x")
        assert client.stat()["pid"] == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert lease.numpy().tolist() == [1, 2], "what is mapped stays readable"
        with pytest.raises(tensorlend.DisconnectedError):
            client.ping()


def test_a_wrong_configuration(tmp_path):
    (tmp_path / "c.toml").write_text("nonsense = 1")
    done = subprocess.run(
        [sys.executable, "-c", DAEMON, "--config", str(tmp_path / "c.toml")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "unknown field" in done.stderr


SLOW = {
    "lasting": lambda client, _: client.put("x", 1, ttl=100),
    "long name": lambda client, _: client.put("x" * 100, 1),
    "large draft": lambda client, _: client.create(1 << 25),
    "large array": lambda client, large: client.put("large", large),
    "copy on write": lambda client, _: client.get("there", mode="cow"),
    "append": lambda client, _: client.append("l", 1),
    "stream": lambda client, _: client.stream("s"),
    "stat": lambda client, _: client.stat(),
    "ping": lambda client, _: client.ping(),
    "connect": lambda client, _: tensorlend.connect(client.address),
}


@pytest.mark.parametrize("call", SLOW)
def test_other_threads_go_on_while_the_daemon_takes_its_time(daemon, call):
    process, socket = daemon
    client, large = tensorlend.connect(socket), np.zeros(1 << 24)
    client.put("there", 1)
    assert client.get("there").numpy() == 1
    gaps, stop = [0.0], threading.Event()

    def tick():
        last = time.monotonic()
        while not stop.is_set():
            time.sleep(0.001)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    ticker = threading.Thread(target=tick)
    process.send_signal(signal.SIGSTOP)
    # Woken by a process: a thread of this one might not run either.
    waker = subprocess.Popen(["sh", "-c", f"sleep 0.6; kill -CONT {process.pid}"])
    ticker.start()
    began = time.monotonic()
    SLOW[call](client, large)
    took = time.monotonic() - began
    stop.set()
    ticker.join()
    waker.wait()
    assert took > 0.4, "the daemon was not asked"
    assert max(gaps) < 0.35, f"threads stood still for {max(gaps):.2f} s"


