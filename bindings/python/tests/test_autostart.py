"""The user's daemon, which the first client starts."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from programs import end_daemons, run, succeeds

if pathlib.Path("/run/tensorlend/tensorlend.sock").exists():
    pytest.skip("this machine has a system's daemon, so that clients start none", allow_module_level=True)

PUT = "import sys, tensorlend; tensorlend.connect().put(sys.argv[1], b'ab')"
#: Prints the names, and the process of the daemon.
LOOK = "import tensorlend; client = tensorlend.connect(); print(*sorted(client.names()), client.stat()['pid'])"


@pytest.fixture
def home(tmp_path):
    """The environment of a user without a daemon."""
    names = ("TENSORLEND_SOCKET", "TENSORLEND_AUTOSTART")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    yield {**environment, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": "/proc", "PATH": "/usr/bin:/bin"}
    end_daemons(tmp_path)


def test_programs_that_race_start_one_daemon_and_it_outlives_them(home):
    start = [sys.executable, "-c", PUT]
    programs = [subprocess.Popen([*start, f"n{number}"], env=home, stderr=subprocess.PIPE, text=True) for number in range(8)]
    for program in programs:
        _, errors = program.communicate(timeout=120)
        assert (program.returncode, errors) == (0, "")
    *names, pid = succeeds("-c", LOOK, env=home).stdout.split()
    assert names == [f"n{number}" for number in range(8)]
    os.kill(int(pid), signal.SIGKILL)
    succeeds("-c", PUT, "n8", env=home)
    *names, other = succeeds("-c", LOOK, env=home).stdout.split()
    assert len(names) == 9 and other != pid


def test_a_forked_child_starts_it(home):
    code = """
import os, threading, tensorlend
event = threading.Event()
threading.Thread(target=event.wait).start()  # a fork of a process with threads
child = os.fork()
if child == 0:
    tensorlend.connect().put("child", b"ab")
    os._exit(0)
event.set()
assert os.waitpid(child, 0)[1] == 0
print(*tensorlend.connect().names())
"""
    assert succeeds("-W", "ignore", "-c", code, env=home).stdout == "child\n"


def test_the_start_leaves_the_program_no_child(home):
    code = """
import os, signal, tensorlend
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps children by itself
tensorlend.connect()
try:
    os.wait()
except ChildProcessError:
    print("no child")
"""
    assert succeeds("-c", code, env=home).stdout == "no child\n"


def test_a_program_that_continues_starts_the_next_one_after_a_kill(home):
    code = """
import os, signal, tensorlend
client = tensorlend.connect()
client.put("a", b"ab")
first = client.stat()["pid"]
os.kill(first, signal.SIGKILL)
client.put("b", b"ab")
print(*sorted(client.names()), client.stat()["pid"] != first)
"""
    assert succeeds("-c", code, env=home).stdout == "a b True\n"


def test_a_program_that_continues_starts_none_after_a_stop(home):
    code = """
import os, signal, tensorlend
client = tensorlend.connect(request_timeout=2)
client.put("a", b"ab")
os.kill(client.stat()["pid"], signal.SIGTERM)
try:
    while True:
        client.stat()
except tensorlend.DisconnectedError:
    print("stopped")
print(*tensorlend.connect().names())
"""
    assert succeeds("-c", code, env=home).stdout == "stopped\na\n"


def test_calls_without_a_client_start_it(home):
    code = "import tensorlend.multiprocessing as m; m.install(); print('installed')"
    assert succeeds("-c", code, env=home).stdout == "installed\n"
    assert succeeds("-c", LOOK, env=home).stdout.strip().isdigit()


def test_it_can_be_forbidden(home, tmp_path):
    done = run("-c", PUT, "a", env={**home, "TENSORLEND_AUTOSTART": "0"})
    assert done.returncode != 0 and "DisconnectedError: no tensorlend daemon responds" in done.stderr
    assert "none was started: TENSORLEND_AUTOSTART forbids it" in done.stderr
    assert list(tmp_path.iterdir()) == []
