"""A camera and viewers, as docs/how-to/opencv.md writes them: the viewers continue with the camera's next process."""

import itertools
import json
import os
import signal
import subprocess
import sys

import pytest
from waiting import LONG, eventually

# numpy's import would delay the first frame until all viewers have found the stream.
CAMERA = """
import itertools, os, time, numpy, tensorlend
client = tensorlend.connect()
with client.stream("camera", capacity=8, policy="drop-oldest") as camera:
    for number in itertools.count():
        frame = camera.create((480, 640), "uint8")
        frame.array[:] = number % 251
        camera.send(frame, timestamp=time.monotonic_ns(), metadata={"pid": os.getpid()})
        time.sleep(0.002)
"""

# The slow viewer takes longer for a frame than the camera's ring lasts.
VIEWER = """
import contextlib, json, sys, time, tensorlend
client = tensorlend.connect()
frames = client.subscribe("camera", wait=float("inf"))
with contextlib.suppress(KeyboardInterrupt):
    while True:
        for frame in frames:
            picture, pid = frame.numpy(), frame.tensor.metadata["pid"]
            time.sleep(float(sys.argv[1]))  # a torn frame would change here
            fine = bool((picture == frame.sequence % 251).all())
            print(json.dumps([pid, frame.sequence, frame.timestamp, frame.lost, fine]), flush=True)
        time.sleep(0.1)
print(json.dumps(frames.lost), flush=True)
"""


class Viewer:
    def __init__(self, path, pause, environment):
        self._path = path
        with path.open("w") as output:
            self.process = subprocess.Popen([sys.executable, "-c", VIEWER, str(pause)], stdout=output, env=environment)

    def lines(self):
        return [json.loads(line) for line in self._path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def frames(self, pid):
        return [line for line in self.lines() if isinstance(line, list) and line[0] == pid]

    def waits_for(self, count, pid):
        eventually(f"{count} frames of camera {pid}", lambda: len(self.frames(pid)) >= count)


@pytest.fixture
def start(broker, tmp_path):
    processes = []
    environment = {**os.environ, "TENSORLEND_SOCKET": broker.address}

    def start(pause=None):
        if pause is not None:
            viewer = Viewer(tmp_path / str(len(processes)), pause, environment)
            processes.append(viewer.process)
            return viewer
        processes.append(subprocess.Popen([sys.executable, "-c", CAMERA], env=environment))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_viewers_continue_when_the_camera_is_killed_and_started_again(start, client):
    viewers = [start(pause) for pause in [0, 0.05]]
    pids = []
    for _ in range(4):
        camera = start()
        pids.append(camera.pid)
        for viewer in viewers:
            viewer.waits_for(10, camera.pid)
        camera.kill()
        camera.wait()
    newest = {pid: max(viewer.frames(pid)[-1][1] for viewer in viewers) for pid in pids}
    for viewer in viewers:
        viewer.process.send_signal(signal.SIGINT)
        assert viewer.process.wait(LONG) == 0, "Ctrl-C ends a viewer"
        *frames, lost = viewer.lines()
        assert [pid for pid, _ in itertools.groupby(frame[0] for frame in frames)] == pids
        assert all(fine for *_, fine in frames), "no frame is torn"
        assert lost == sum(frame[3] for frame in frames)
        for before, after in itertools.pairwise(frames):
            if after[0] == before[0]:
                assert after[2] > before[2], "timestamps increase"
                assert after[1] == before[1] + 1 + after[3], "each frame is seen or counted"
            else:
                missed = newest[before[0]] - before[1] + after[1]
                assert after[3] >= missed, "frames that a restart has cost are counted, too"
    assert viewers[1].lines()[-1] > 0, "the slow viewer lost frames"
    eventually("the end of all viewers", lambda: client.stat()["clients"] == 1)
    assert client.leased() == 0


def test_a_viewer_that_stands_still_stops_neither_the_camera_nor_another_viewer(start):
    still, other = start(0), start(0)
    camera = start()
    still.waits_for(1, camera.pid)
    os.kill(still.process.pid, signal.SIGSTOP)
    other.waits_for(len(other.frames(camera.pid)) + 100, camera.pid)
    seen = len(still.frames(camera.pid))
    os.kill(still.process.pid, signal.SIGCONT)
    still.waits_for(seen + 20, camera.pid)
    assert sum(frame[3] for frame in still.frames(camera.pid)) > 0


def test_a_viewer_that_starts_late_sees_the_newest_frame_first(start, client):
    early, camera = start(0), start()
    early.waits_for(30, camera.pid)
    newest = early.frames(camera.pid)[-1][1]
    late = start(0)
    late.waits_for(1, camera.pid)
    first = late.frames(camera.pid)[0]
    assert first[1] >= newest and first[3] == 0
