"""The programs that the package carries along, and a daemon that is a process of its own."""

import functools
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import programs
import pytest

import tensorlend

@pytest.fixture
def daemon(tmp_path):
    """A daemon and its socket."""
    socket = tmp_path / "s"
    with programs.daemon(socket) as process:
        yield process, socket


tool = functools.partial(programs.run, "-m", "tensorlend")


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
    done = programs.run("-c", programs.DAEMON, "--config", tmp_path / "c.toml")
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
    went_on = threading.Event()

    def other():
        time.sleep(0.2)
        went_on.set()
        process.send_signal(signal.SIGCONT)

    process.send_signal(signal.SIGSTOP)
    # The daemon continues at the end even if no other thread runs.
    rescue = f"import os, signal, time; time.sleep(300); os.kill({process.pid}, signal.SIGCONT)"
    rescuer = subprocess.Popen([sys.executable, "-c", rescue])
    thread = threading.Thread(target=other)
    thread.start()
    SLOW[call](client, large)
    assert went_on.is_set(), "the daemon was not asked"
    assert rescuer.poll() is None, "the other thread stood still"
    thread.join()
    rescuer.kill()
    rescuer.wait()


