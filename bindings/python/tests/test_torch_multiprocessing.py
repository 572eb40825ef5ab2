"""Tensors of torch through torch.multiprocessing, and batches of DataLoader as leases."""

import copy
import multiprocessing
import os
import pathlib
import pickle
import re
import threading

import numpy as np
import pytest
from programs import succeeds

torch = pytest.importorskip("torch", reason="torch is not installed")

from waiting import eventually

import tensorlend
import tensorlend.torch
from tensorlend import _transit

HERE = pathlib.Path(__file__).parent
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("TENSORLEND_SOCKET", "TENSORLEND_RUN"))}


def output(*arguments, **environment):
    """Runs a program; returns its lines, and the number of values that it lent."""
    done = succeeds(*arguments, timeout=900, env={**ENVIRONMENT, **environment})
    lent = re.search(r"tensorlend: lent ([\d,]+) arrays", done.stderr)
    return done.stdout.splitlines(), int(lent[1].replace(",", "")) if lent else None


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_torch_multiprocessing_is_as_without(method):
    """Tensors that a program sends are shared, and arrays are copies."""
    program = HERE / "torch_multiprocessing_cases.py"
    usual, _ = output(program, method)
    assert len(usual) == 66 and not [line for line in usual if "Error" in line], usual
    under, lent = output("-m", "tensorlend.run", program, method)
    assert under == usual and lent
    small, more = output("-m", "tensorlend.run", program, method, SMALLEST="0")
    assert small == usual and more > lent


def test_loaders_are_as_without():
    """A batch is lent only if its worker cannot see what the trainer writes to it."""
    program = HERE / "loader_cases.py"
    usual, _ = output(program, "fork")
    under, lent = output("-m", "tensorlend.run", program, "fork")
    # Each batch of default_collate, of one that stacks, and of samples; and the pair of two batches that are one.
    assert under == usual and lent >= 16


@pytest.fixture
def installed(client):
    tensorlend.torch.install(client=client)
    yield client
    tensorlend.torch.uninstall()


class Noise(torch.utils.data.Dataset):
    """Samples of 432 KiB, which the allocator takes from the heap."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return 16 * self.batches

    def __getitem__(self, index):
        return torch.rand(3, 192, 192), index


def loader(batches, **options):
    return torch.utils.data.DataLoader(Noise(batches), batch_size=16, multiprocessing_context="fork", **{"num_workers": 1, **options})


def test_batches_are_leases(installed):
    batches = list(loader(4, num_workers=2))
    assert [x.is_shared() for x, _ in batches] == [False] * 4
    assert torch.cat([y for _, y in batches]).tolist() == list(range(64))
    x = batches[0][0]
    x += 1  # It is the trainer's own.
    assert float(x.min()) >= 1
    eventually("all batches are received", lambda: not installed.list("transit/*"))


def test_a_collate_function_of_the_program_stays(client):
    def own(batch, *, collate_fn_map=None):
        return torch.cat(batch)

    functions = torch.utils.data._utils.collate.default_collate_fn_map
    usual = functions[torch.Tensor]
    functions[torch.Tensor] = own
    try:
        tensorlend.torch.install(client=client)
        assert functions[torch.Tensor] is own
        tensorlend.torch.uninstall()
        assert functions[torch.Tensor] is own
    finally:
        tensorlend.torch.uninstall()
        functions[torch.Tensor] = usual


def test_batches_can_be_copied_and_pickled(installed):
    def copied(samples):
        batch = torch.utils.data.default_collate(samples)
        return copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)), batch

    data = [torch.full((1 << 16,), number, dtype=torch.float32) for number in range(8)]
    for number, batches in enumerate(torch.utils.data.DataLoader(data, batch_size=2, num_workers=1, collate_fn=copied)):
        for batch in batches:
            assert batch[:, 0].tolist() == [2 * number, 2 * number + 1]


def test_batches_that_nobody_takes_are_withdrawn(installed):
    for _ in range(2):
        for _ in loader(8, num_workers=2):
            break
    eventually("the last batches are gone", lambda: not installed.list("transit/*"))


def anonymous(pid):
    """Returns the MiB of private memory of a process."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) / 1024


def test_a_worker_does_not_grow(installed):
    batches = iter(loader(200))
    (worker,) = batches._workers
    sizes = [anonymous(worker.pid) for _ in batches if worker.is_alive()]
    # A batch has 6.75 MiB. If the worker stacked its batches on the heap, it would grow by hundreds of MiB.
    assert len(sizes) > 150 and max(sizes) - sizes[10] < 135


def test_without_memory_batches_are_torchs(broker):
    limited = broker.connect(memory_limit=1 << 20)
    tensorlend.torch.install(client=limited)
    try:
        assert [x.is_shared() for x, _ in loader(2)] == [True, True]
    finally:
        tensorlend.torch.uninstall()


def test_arrays_in_connections_of_torch_wait_for_the_receiver(installed):
    """torch's queues and pools pickle messages themselves. The memory of those that wait has the limit of all arrays."""
    from torch.multiprocessing.queue import SimpleQueue

    queue = SimpleQueue(ctx=multiprocessing.get_context("fork"))
    sender = threading.Thread(target=lambda: [queue._writer.send(np.full(1 << 17, number)) for number in range(20)], daemon=True)
    sender.start()
    most = _transit.WAITING_BYTES_MAX // (8 << 17) + 1
    eventually("the most that may wait is lent", lambda: len(installed.list("transit/*")) == most)
    sender.join(3)
    assert sender.is_alive() and len(installed.list("transit/*")) == most
    assert [int(queue._reader.recv()[-1]) for _ in range(20)] == list(range(20))


def test_gone(installed):
    tensorlend.torch.uninstall()
    assert [x.is_shared() for x, _ in loader(1)] == [True]


def test_many_batches_need_few_files(script):
    """torch opens a file for each batch that a program keeps."""
    source = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import tensorlend.torch, torch
torch.set_num_threads(1)
tensorlend.torch.install()
data = torch.arange(600.0).repeat_interleave(1 << 15).reshape(600, -1)
kept = list(torch.utils.data.DataLoader(data, num_workers=1, multiprocessing_context="fork"))
print(sum(int(batch[0, 0]) for batch in kept))
"""
    assert script(source, timeout=120).stdout == f"{599 * 600 // 2}\n"
