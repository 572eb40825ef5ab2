"""Tensors on a real card, by torch and cupy: left out where there is none, and on no stand-in."""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import tensorlend
from cards import blocks

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch finds no CUDA device", allow_module_level=True)

BIG = 1 << 24


@pytest.fixture(scope="module")
def broker() -> Iterator[tensorlend.Embedded]:
    with tensorlend.embedded('[cuda]\ndevices = ["all"]\n') as broker:
        yield broker


@pytest.fixture
def client(broker: tensorlend.Embedded) -> Iterator[tensorlend.Client]:
    with broker.connect(label="test") as client:
        if not client.devices():
            pytest.skip(f"the daemon lends no device: {client.stat()['device']}")
        yield client


def test_a_draft_is_written_in_place(client):
    allocated = torch.cuda.memory_allocated()
    draft = client.create((1000, 1000), "float32", device="cuda:0")
    tensor = torch.from_dlpack(draft)
    assert tensor.data_ptr() == draft.ptr and tensor.device == torch.device("cuda:0")
    torch.arange(1_000_000, device="cuda", dtype=torch.float32, out=tensor.view(-1))
    assert torch.cuda.memory_allocated() == allocated, "nothing of torch's own"
    draft.publish("x", stream=torch.cuda.current_stream())
    lease = client.get("x")
    seen = torch.from_dlpack(lease)
    assert seen.data_ptr() == lease.ptr and torch.cuda.memory_allocated() == allocated
    assert float(seen[999, 999]) == 999_999 and lease.to_host()[3, 4] == 3004
    assert float(lease.torch().double().sum()) == 499_999_500_000


def test_every_dtype(client):
    names = "bool int8 int16 int32 int64 uint8 float16 bfloat16 float32 float64 complex64 complex128"
    for name in names.split():
        given = (torch.arange(24, device="cuda").reshape(2, 3, 4) % 2).to(getattr(torch, name))
        client.put("x", given)
        lease = client.get("x")
        assert lease.dtype == name and lease.shape == (2, 3, 4)
        assert torch.equal(torch.from_dlpack(lease), given)
        assert torch.equal(torch.from_dlpack(lease).cpu(), given.cpu())
        client.put("x", given.transpose(0, 2))
        assert torch.equal(client.get("x").torch(), given.transpose(0, 2))


def test_work_on_a_side_stream(client):
    side = torch.cuda.Stream()
    draft = client.create(BIG, "float32", device="cuda:0")
    with torch.cuda.stream(side):
        tensor = torch.from_dlpack(draft)  # records the current stream
        for _ in range(20):
            tensor.fill_(1).mul_(2).add_(1)
    version = draft.publish("x")
    assert float(client.get("x").torch().double().sum()) == 3.0 * BIG
    draft = client.create(BIG, "float32", device="cuda:0")
    tensor = torch.from_dlpack(draft)
    with torch.cuda.stream(side):
        tensor.fill_(5)
    draft.record_stream(side)
    assert draft.publish("x") != version
    assert float(client.get("x").torch().min()) == 5


def test_a_lease_outlives_what_reads_it(client):
    side, out = torch.cuda.Stream(), torch.empty(BIG, device="cuda")
    for turn in range(10):
        client.put("x", torch.full((BIG,), float(turn), device="cuda"))
        lease = client.get("x")
        tensor = torch.from_dlpack(lease)
        with torch.cuda.stream(side):
            for _ in range(10):
                out.copy_(tensor)
        lease.record_stream(side)
        del tensor, lease
        client.delete("x")
        # The next tensor in this memory has different numbers.
        client.put("y", torch.full((BIG,), -1.0, device="cuda"))
        side.synchronize()
        assert float(out.min()) == float(out.max()) == turn


def test_published_early(client):
    side, mine = torch.cuda.Stream(), torch.cuda.Stream()
    for turn in range(5):
        draft = client.create(BIG, "float32", device="cuda:0")
        with torch.cuda.stream(side):
            tensor = torch.from_dlpack(draft)
            for _ in range(20):
                tensor.fill_(float(turn))
        draft.publish_early("x", side)
        lease = client.get("x", stream=mine)
        with torch.cuda.stream(mine):
            total = torch.from_dlpack(lease).double().sum()
        mine.synchronize()
        assert float(total) == turn * BIG
        del tensor


def test_datasets(client):
    """Tensors on the card and in host memory under one name; publishing waits for torch's streams."""
    side = torch.cuda.Stream()
    draft = client.create(BIG, "float32", device="cuda:0")
    with torch.cuda.stream(side):
        written = torch.from_dlpack(draft)
        for _ in range(20):
            written.fill_(1).mul_(2).add_(1)
    points = torch.arange(12, device="cuda", dtype=torch.bfloat16).reshape(3, 4)
    client.put_dataset("batch", {"features": draft, "labels": np.arange(5), "points": points.T})
    batch = client.get_dataset("batch")
    assert [type(lease).__name__ for lease in batch.values()] == ["DeviceLease", "Lease", "DeviceLease"]
    features, labels, seen = batch.torch()
    assert float(features.double().sum()) == 3.0 * BIG and features.data_ptr() == batch["features"].ptr
    assert labels.device.type == "cpu" and labels.tolist() == [0, 1, 2, 3, 4]
    assert seen.device.type == "cuda" and torch.equal(seen, points.T)
    # The lease lasts until the side stream has read the features.
    out = torch.empty(BIG, device="cuda")
    with torch.cuda.stream(side):
        for _ in range(10):
            out.copy_(features)
    batch["features"].record_stream(side)
    del batch, features, labels, seen, written
    client.delete("batch")
    client.put("next", torch.full((BIG,), -1.0, device="cuda"))
    side.synchronize()
    assert float(out.min()) == float(out.max()) == 3
    client.append("batches", {"x": points, "y": np.zeros(2)})
    (item,) = client.get_all("batches")
    assert torch.equal(item["x"].torch(), points) and item["y"].numpy().tolist() == [0, 0]
    client.clear("batches")


READER = """
import sys, torch, tensorlend
client = tensorlend.connect(sys.argv[1])
seen = None
for _ in range(20):
    lease = client.wait_newer("turn", seen, timeout=60)
    tensor = torch.from_dlpack(lease)
    low, high = float(tensor.min()), float(tensor.max())
    assert low == high, (low, high)
    seen = lease.version
    client.put("back", tensor[:1].contiguous())
    if low == 9: break
"""


def test_between_processes(client, broker):
    command = [sys.executable, "-c", READER, broker.address]
    reader = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for turn in range(10):
        client.put("turn", torch.full((BIG,), float(turn), device="cuda"))
        back = client.wait_for("back", timeout=60)
        while float(back.torch()[0]) != turn:
            back = client.wait_newer("back", back, timeout=60)
    _, err = reader.communicate(timeout=120)
    assert reader.returncode == 0, err


def test_threads(client):
    failed = []

    def work(number):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for turn in range(20):
                    client.put(f"t/{number}", torch.full((1000, 100), number * 100.0 + turn, device="cuda"))
                    tensor = client.get(f"t/{number}").torch()
                    assert float(tensor.min()) == float(tensor.max()) == number * 100 + turn
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_nothing_of_torchs_memory_is_used(client):
    gc.collect()
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(50):
        with client.create(BIG, "uint8", device="cuda:0", name="x") as draft:
            draft.torch().fill_(3)
        assert client.get("x").torch().data_ptr()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (allocated, reserved)


@pytest.mark.parametrize("block", [*blocks("card"), *blocks("gpu")])
def test_the_manual(block, client, broker):
    if "numba" in block:
        pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    environment = {**os.environ, "TENSORLEND_SOCKET": broker.address}
    done = subprocess.run([sys.executable, "-c", block], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_host_arrays(client):
    array = np.random.default_rng(0).random((513, 1025))
    client.put("x", array, device="cuda:0")
    assert np.array_equal(client.get("x").to_host(), array)
    assert np.array_equal(torch.from_dlpack(client.get("x")).cpu().numpy(), array)


def test_cupy(client):
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    draft = client.create((100, 100), "float32", device="cuda:0")
    array = cupy.asarray(draft)
    assert array.data.ptr == draft.ptr
    array[...] = cupy.arange(10_000, dtype="float32").reshape(100, 100)
    draft.publish("x")
    lease = client.get("x")
    view = cupy.asarray(lease)
    assert view.data.ptr == lease.ptr and float(view.sum()) == 49_995_000
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        doubled = view * 2
    lease.record_stream(stream)
    stream.synchronize()
    assert float(doubled[99, 99]) == 19_998
    client.put("y", cupy.arange(7), stream=stream)
    assert client.get("y").to_host().tolist() == list(range(7))


def test_numba(client):
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from numba import cuda

    client.put("x", np.arange(1000, dtype=np.float32), device="cuda:0")
    assert (cuda.as_cuda_array(client.get("x")).copy_to_host() == np.arange(1000)).all()


def test_page_locked_host_memory(client):
    host = np.arange(BIG, dtype=np.float32)
    client.put("host", host)
    lease, stream = client.get("host"), torch.cuda.Stream()
    draft = lease.to("cuda:0", stream=stream)
    draft.publish("copied")
    assert torch.equal(client.get("copied").torch().cpu(), torch.from_numpy(host))
    lease.page_lock("cuda:0", stream=torch.cuda.current_stream())
    tensor = lease.torch()
    assert tensor.is_pinned()
    assert torch.equal(tensor.to("cuda", non_blocking=True).cpu(), tensor)


def test_the_loaders_batches_are_page_locked(broker):
    from tensorlend.torch import SharedLoader

    data = torch.utils.data.TensorDataset(torch.arange(64 * 1000, dtype=torch.float32).reshape(64, 1000))
    loader = SharedLoader(data, batch_size=8, num_workers=2, pin_memory=True, address=broker.address)
    seen = []
    for (batch,) in loader:
        assert batch.is_pinned()
        seen.append(batch.to("cuda", non_blocking=True).cpu().clone())
        del batch
    assert torch.equal(torch.cat(seen), data.tensors[0])
