"""The package's messages through `logging`."""

import multiprocessing
import os
import subprocess
import sys

import numpy as np
from stored_daemon import StoredDaemon
from waiting import eventually

from programs import run
import tensorlend
import tensorlend.multiprocessing


def logged(caplog):
    return [(record.name, record.levelname, record.getMessage()) for record in caplog.records]


def test_a_lost_daemon_and_its_successor(tmp_path, caplog):
    caplog.set_level("INFO", "tensorlend")
    daemon = StoredDaemon(tmp_path)
    try:
        with tensorlend.connect(daemon.socket) as client:
            client.put("x", 1)
            daemon.kill()
            eventually("the loss is logged", lambda: logged(caplog))
            daemon.start()
            eventually("the session continues", lambda: len(logged(caplog)) == 2)
            assert client.get("x").numpy() == 1
    finally:
        daemon.close()
    (name, level, text), (_, again, continues) = logged(caplog)
    assert (name, level, again) == ("tensorlend", "WARNING", "INFO")
    assert "the daemon has ended" in text and "a session continues" in continues


BUSY = """
import logging, sys, time, tensorlend

class Slow(logging.Handler):
    def emit(self, record):
        time.sleep(0.05)
        client.exists("x")
        seen.append(record)

seen = []
client = tensorlend.connect(sys.argv[1])
logger = logging.getLogger("tensorlend")
logger.addHandler(Slow())
logger.setLevel("INFO")
print("ready", flush=True)
while len(seen) < 3:
    client.create((20000,), "uint8")
print("done", flush=True)
"""


def test_a_slow_handler_that_uses_its_client_holds_up_nobody(tmp_path):
    daemon = StoredDaemon(tmp_path)
    try:
        with subprocess.Popen([sys.executable, "-c", BUSY, daemon.socket], stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None and program.stdout.readline() == "ready\n"
            try:
                for _ in range(40):
                    if program.poll() is not None:
                        break
                    daemon.kill()
                    daemon.start()
                    with tensorlend.connect(daemon.socket) as client:
                        client.ping()
                assert program.communicate(timeout=120)[0] == "done\n"
            finally:
                program.kill()
    finally:
        daemon.close()


def test_values_that_could_not_be_lent(broker, caplog):
    caplog.set_level("INFO", "tensorlend")
    tensorlend.multiprocessing.install(client=broker.connect(memory_limit=1 << 20))
    try:
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=there.recv, daemon=True)
        process.start()
        here.send(np.zeros(1 << 18))
        process.join(60)
    finally:
        tensorlend.multiprocessing.uninstall()
    ((_, level, text),) = logged(caplog)
    assert level == "INFO" and text.startswith("2097152 bytes travel as usual, not in lent memory: ") and "memory" in text


def test_a_transport_that_cannot_be_installed():
    code = "import logging, numpy; logging.basicConfig(level='INFO'); import multiprocessing.reduction"
    environment = {**os.environ, "TENSORLEND_SOCKET": "/nowhere"}
    done = run("-m", "tensorlend.run", "-c", code, env=environment)
    first, last = done.stderr.splitlines()
    assert first.startswith("INFO:tensorlend:multiprocessing works as usual, without lent memory: no tensorlend daemon responds")
    assert "not installed: multiprocessing: no tensorlend daemon responds" in last
