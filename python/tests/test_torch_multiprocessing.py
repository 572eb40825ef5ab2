"""Tensors of torch through torch.multiprocessing as leases."""

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from waiting import eventually

import tensorlend
import tensorlend.torch

LARGE = 1 << 16  # elements of 4 bytes or more


@pytest.fixture
def installed(client):
    tensorlend.torch.install(client=client)
    yield client
    tensorlend.torch.uninstall()


def sent(value):
    here, there = torch.multiprocessing.Pipe()
    here.send(value)
    return there.recv()


def in_shared_files():
    return sum("torch_" in line for line in open("/proc/self/maps"))


def test_tensors_are_snapshots(installed):
    for tensor in (torch.arange(LARGE), torch.ones(LARGE, dtype=torch.bfloat16).repeat(2), torch.arange(2 * LARGE).reshape(2, -1).T):
        before = in_shared_files()
        found = sent({"x": [tensor]})["x"][0]
        assert torch.equal(found, tensor) and found.dtype == tensor.dtype and in_shared_files() == before and not tensor.is_shared()
        found += 1
        assert not torch.equal(found, tensor)
    assert not installed.list("transit/*")


def test_what_stays_torchs(installed):
    shared = torch.zeros(LARGE).share_memory_()
    found = sent(shared)
    found += 1
    assert shared[0] == 1 and found.is_shared()
    grad = torch.zeros(LARGE, requires_grad=True)
    assert sent(grad).requires_grad and type(sent(torch.nn.Parameter(torch.ones(LARGE)))) is torch.nn.Parameter
    assert sent(torch.arange(5)).tolist() == [0, 1, 2, 3, 4]
    assert sent(torch.eye(300).to_sparse()).is_sparse
    assert torch.equal(sent(torch.ones(LARGE, dtype=torch.complex64).conj() * 1j), torch.full((LARGE,), 1j))


def test_expanded_tensors_stay_torchs(installed):
    found = sent(torch.zeros(1).expand(LARGE))
    assert found.stride() == (0,) and not installed.list("transit/*")


def test_gone(installed):
    tensorlend.torch.uninstall()
    tensor = torch.arange(LARGE)
    assert sent(tensor).is_shared() and tensor.is_shared()


def double(inbox, outbox):
    # A forked child does not have the threads of its parent's torch.
    torch.set_num_threads(1)
    while (tensor := inbox.get()) is not None:
        shared = tensor.is_shared()
        outbox.put((shared, tensor * 2))
    inbox.get()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_queues(installed, method):
    context = torch.multiprocessing.get_context(method)
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=double, args=(inbox, outbox), daemon=True)
    process.start()
    for tensor in (torch.arange(LARGE), torch.arange(4)):
        inbox.put(tensor)
        shared, back = outbox.get(timeout=60)
        assert torch.equal(back, tensor * 2) and shared == (len(tensor) == 4)
        # A spawned process has not installed it.
        assert back.is_shared() == (len(tensor) == 4 or method == "spawn")
    inbox.put(None)
    inbox.put(None)
    process.join(60)
    assert process.exitcode == 0


def test_a_loader_of_torch(installed):
    dataset = torch.utils.data.TensorDataset(torch.arange(64 * 4096.0).reshape(64, 4096), torch.arange(64))
    loader = torch.utils.data.DataLoader(dataset, batch_size=16, num_workers=2, multiprocessing_context="fork")
    batches = list(loader)
    assert [x.is_shared() for x, _ in batches] == [False] * 4
    assert torch.equal(torch.cat([x for x, _ in batches]), dataset.tensors[0]) and torch.cat([y for _, y in batches]).tolist() == list(range(64))
    eventually("all batches are received", lambda: not installed.list("transit/*"))


def keep(inbox, outbox):
    torch.set_num_threads(1)
    kept = []
    while (tensor := inbox.get()) is not None:
        kept.append(tensor)
    outbox.put(sum(int(tensor[0]) for tensor in kept))


def test_many_tensors_need_few_files(script):
    """With 256 files torch itself ends after 242 tensors: received 0 items of ancdata."""
    source = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
sys.path.insert(0, sys.argv[1])
import tensorlend.torch, torch
from test_torch_multiprocessing import keep
torch.set_num_threads(1)
tensorlend.torch.install()
context = torch.multiprocessing.get_context("fork")
inbox, outbox = context.Queue(), context.Queue()
process = context.Process(target=keep, args=(inbox, outbox), daemon=True)
process.start()
for number in range(600):
    inbox.put(torch.full((1 << 15,), number, dtype=torch.float64))
inbox.put(None)
print(outbox.get(timeout=60))
"""
    assert script(source, os.path.dirname(__file__), timeout=120).stdout == f"{599 * 600 // 2}\n"
