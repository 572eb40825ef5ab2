"""The programs of examples/ run."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"


def start(*command: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )


def done(process: subprocess.Popen[str]) -> str:
    try:
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, said
    return said


@pytest.fixture
def viewer_in_c(tmp_path):
    """The viewer in C, built against the library that TENSORLEND_CAPI names (scripts/capi --prefix)."""
    prefix = os.environ.get("TENSORLEND_CAPI")
    if prefix is None:
        pytest.skip("no library for C: build it with scripts/capi --prefix DIR and set TENSORLEND_CAPI=DIR")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    program = tmp_path / "brightness"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{prefix}/include", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib"]
    subprocess.run(["cc", EXAMPLES / "camera/brightness.c", "-o", program, *flags, "-ltensorlend"], check=True)
    return program


def camera_has_ended(viewer: subprocess.Popen[str]) -> None:
    """Waits until a viewer in Python has read everything that its camera sent."""
    said = viewer.stdout.readline()
    assert "the camera has ended" in said, said


def interrupted(viewer: subprocess.Popen[str]) -> list[int]:
    """Ends a viewer in Python, and returns its numbers of pictures and of lost ones."""
    viewer.send_signal(signal.SIGINT)
    return [*map(int, re.findall(r"viewer: (\d+) pictures, (\d+) lost", done(viewer))[0])]


def test_a_camera_and_viewers_in_python_and_c(broker, viewer_in_c):
    socket = {"TENSORLEND_SOCKET": broker.address}
    viewer = start(sys.executable, EXAMPLES / "camera/viewer.py", **socket)
    in_c = start(viewer_in_c, **socket)
    done(start(sys.executable, EXAMPLES / "camera/camera.py", "50", "2", **socket))
    pictures, mean = re.findall(r"(\d+) pictures, mean ([\d.]+)", done(in_c))[0]
    assert 0 < int(pictures) <= 50 and 0 < float(mean) < 60
    camera_has_ended(viewer)
    seen, lost = interrupted(viewer)
    assert seen + lost == 50 and seen > 0


def test_viewers_in_python_continue_with_the_next_camera(broker):
    socket = {"TENSORLEND_SOCKET": broker.address}
    viewers = [start(sys.executable, EXAMPLES / "camera/viewer.py", **socket) for _ in range(2)]
    for frames in ["20", "30"]:
        done(start(sys.executable, EXAMPLES / "camera/camera.py", frames, "2", **socket))
        for viewer in viewers:
            camera_has_ended(viewer)
    for viewer in viewers:
        seen, lost = interrupted(viewer)
        assert seen + lost == 50 and seen > 0


def test_a_training_loop(broker):
    pytest.importorskip("torch", reason="torch is not installed")
    said = done(start(sys.executable, EXAMPLES / "python/train_shared_loader.py", TENSORLEND_SOCKET=broker.address))
    assert "loss" in said


def test_environments_in_parallel():
    pytest.importorskip("gymnasium", reason="gymnasium is not installed")
    assert "200 steps, 1600 KiB in views" in done(start(sys.executable, EXAMPLES / "python/vector_env.py"))


def test_a_trainer_of_transformers(broker):
    for package in ("torch", "transformers", "accelerate", "msgpack"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    said = done(start(sys.executable, EXAMPLES / "python/finetune.py", TENSORLEND_SOCKET=broker.address))
    before, after = map(float, re.findall(r"^loss ([\d.]+) before, ([\d.]+) after$", said, re.MULTILINE)[0])
    assert after < before


def test_pictures_between_actors_of_ray(broker):
    for package in ("torch", "ray"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    said = done(start(sys.executable, EXAMPLES / "python/ray_pictures.py", TENSORLEND_SOCKET=broker.address))
    assert re.search(r"^20 pictures, mean brightness 9.491$", said, re.MULTILINE), said


def test_an_agent_of_stable_baselines3():
    for package in ("torch", "stable_baselines3"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    said = done(start(sys.executable, EXAMPLES / "python/sb3_train.py"))
    assert re.search(r"^mean reward -[\d.]+ before, -[\d.]+ after$", said, re.MULTILINE), said


def test_weights_that_processes_share(broker, tmp_path):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    arrays = {name: np.full(1 << 18, number, np.float32) for number, name in enumerate("abcd")}
    save_file(arrays, tmp_path / "model.safetensors")
    said = done(start(sys.executable, EXAMPLES / "python/weights.py", tmp_path / "model.safetensors", 3, TENSORLEND_SOCKET=broker.address))
    assert re.search(r"^3 processes, 4,194,304 bytes of weights: [\d,]+ bytes in all\nloading took [\d.]+ ms", said, re.MULTILINE), said


def test_work_that_processes_share():
    assert "30 of 30 images are done" in done(start(sys.executable, EXAMPLES / "python/jobs.py", 30, 3))


@pytest.fixture
def published(broker, client):
    """Digits as the producer of examples/training publishes them."""
    pictures = np.load(EXAMPLES / "data/digits.npy").reshape(-1, 64).astype(np.float32) / 16
    labels = np.load(EXAMPLES / "data/digits_labels.npy")
    for at in range(0, 1500, 64):
        end = min(at + 64, 1500)
        client.put_dataset(f"digits/train/64/{at // 64}", {"features": pictures[at:end], "labels": labels[at:end]})
    client.put_dataset("digits/test", {"features": pictures[1500:], "labels": labels[1500:]})
    client.put_dataset("digits/train", {"features": pictures[:1500], "labels": labels[:1500]})
    return broker.address


def test_all_loaders_teach_the_same(published):
    pytest.importorskip("torch", reason="torch is not installed")
    wanted = ["by reference", "batches by name", "at once", "leased once", "SharedLoader, 1", "over lent"]
    wanted += ["queue", "DataLoader, 0", "DataLoader, 4"]
    train = [sys.executable, "-W", "ignore", EXAMPLES / "training/train.py", "--socket", published, "--set", "digits", "--json"]
    runs = [json.loads(done(start(*train, "--batch", 64, "--epochs", 5, "--loader", loader))) for loader in wanted]
    assert len({run["loader"] for run in runs}) == len(wanted)
    assert all(run["losses"] == runs[0]["losses"] for run in runs)
    assert len(runs[0]["losses"]) == 5 * 24 and runs[0]["accuracy"] > 0.8


def test_what_is_counted_on_a_gpu_says_why_not():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device: examples/training/device.py measures there")
    said = done(start(sys.executable, EXAMPLES / "training/device.py", "--mnist", "nowhere"))
    assert said == "skipped: torch finds no CUDA device\n"


def test_a_program_of_smartredis_unchanged(broker):
    program = EXAMPLES / "smartredis/simulation.py"
    said = done(start(sys.executable, "-m", "tensorlend.smartredis", program, SSDB=f"unix://{broker.address}"))
    assert "Traceback" not in said


def test_an_engine_loads_what_a_killed_one_has_computed(broker):
    said = done(start(sys.executable, EXAMPLES / "python/kv_cache.py", TENSORLEND_SOCKET=broker.address))
    (first, computed), (second, rest) = re.findall(r"\w+: (\[.*\]), computed (\d+) tokens", said)
    # The second run computes either the whole prompt, or the tokens after its 6 full blocks. It computes all generated
    # tokens but the last.
    assert first == second and (int(computed), int(rest)) == (100 + 7, 100 - 96 + 7)
