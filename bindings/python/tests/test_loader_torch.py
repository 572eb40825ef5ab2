"""The loader for torch, against torch's own: the same batches in the same order for the same seeds."""

import importlib.util
import inspect
import multiprocessing
import os
import random
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: its loader is not tested")

import loader_samples as samples  # noqa: E402
import loader_torch_samples as mine  # noqa: E402
from loader_samples import same  # noqa: E402
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, TensorDataset  # noqa: E402
from waiting import gone, limited  # noqa: E402

import tensorlend  # noqa: E402
from tensorlend.torch import SharedLoader, empty  # noqa: E402


@pytest.fixture(autouse=True)
def time_limit():
    with limited(240), warnings.catch_warnings():
        # Of torch, where there are fewer cores than workers.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def compare(make, *, broken_off=True):
    """Whole epochs, one that is broken off, and the one after it, of both loaders; the generator's state after each."""
    seen = []
    for kind in (DataLoader, SharedLoader):
        torch.manual_seed(11)
        random.seed(12)
        np.random.seed(13)
        loader = make(kind)
        epochs = [list(loader), list(loader)]
        states = [torch.get_rng_state()]
        if loader.generator is not None:
            states.append(loader.generator.get_state())
        if broken_off:
            batches = iter(loader)
            epochs.append([next(batches), next(batches)])
            del batches
            epochs.append(list(loader))
            states.append(torch.get_rng_state())
            if loader.generator is not None:
                states.append(loader.generator.get_state())
        seen.append([epochs, states])
        lengths = getattr(loader.dataset, "__len__", None) and len(loader)
        assert lengths is None or lengths == len(epochs[0])
    same(seen[1], seen[0])


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_same_batches(workers, persistent, shuffle, drop_last):
    compare(
        lambda kind: kind(
            mine.Nested(), 4, num_workers=workers, shuffle=shuffle, drop_last=drop_last, persistent_workers=persistent
        )
    )


@pytest.mark.parametrize("prefetch", [2, 3, 30])
@pytest.mark.parametrize(("length", "drop_last"), [(23, False), (23, True), (24, False), (28, False), (29, True)])
def test_same_batches_with_a_generator_of_its_own(prefetch, length, drop_last):
    def make(kind):
        return kind(
            mine.Nested(length),
            4,
            num_workers=2,
            shuffle=True,
            drop_last=drop_last,
            generator=torch.Generator().manual_seed(5),
            prefetch_factor=prefetch,
            persistent_workers=True,
        )

    compare(make)


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: RandomSampler(range(23), replacement=True, num_samples=15),
        lambda: RandomSampler(range(23), num_samples=9),
        lambda: RandomSampler(range(23), num_samples=50),
        lambda: SubsetRandomSampler(range(3, 20)),
        lambda: [7, 7, 0, 22, 3],
    ],
)
def test_same_batches_of_samplers(sampler):
    compare(lambda kind: kind(mine.Nested(), 4, num_workers=2, sampler=sampler()))


def test_same_batches_of_batch_samplers_and_without_batches():
    compare(lambda kind: kind(mine.Nested(), num_workers=2, batch_sampler=[[1, 2], [3], [22, 0, 7]]), broken_off=False)
    compare(lambda kind: kind(mine.Nested(), batch_size=None, num_workers=2, shuffle=True), broken_off=False)
    compare(lambda kind: kind(mine.Some(), 5, num_workers=2))
    compare(lambda kind: kind([torch.ones(2)] * 3 + [torch.zeros(2)] * 3, 2, num_workers=2))


def test_same_batches_without_workers():
    compare(lambda kind: kind(mine.Nested(), 4, shuffle=True))


def test_same_batches_out_of_tensors_which_are_gathered():
    pictures, numbers = torch.rand(50, 3, 2).transpose(1, 2), torch.arange(50, dtype=torch.int16)
    compare(lambda kind: kind(TensorDataset(pictures, numbers), 8, num_workers=2, shuffle=True))
    compare(lambda kind: kind(TensorDataset(numbers), 8, num_workers=2, sampler=[1, -1, -50, 49]), broken_off=False)
    with pytest.raises(IndexError):
        list(SharedLoader(TensorDataset(numbers), 8, 1, sampler=[50]))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_same_batches_of_iterable_datasets(workers, persistent):
    for size in (4, None):
        compare(lambda kind, size=size: kind(mine.Counted(), size, num_workers=workers, persistent_workers=persistent))
    compare(lambda kind: kind(mine.Counted(), 4, num_workers=workers, drop_last=True))


@pytest.mark.parametrize("collate", [mine.listed, mine.own, mine.resized])
def test_same_batches_of_custom_collates(collate):
    compare(lambda kind: kind(mine.Nested(), 4, num_workers=2, collate_fn=collate))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_same_batches_of_start_methods(method):
    compare(
        lambda kind: kind(
            mine.Nested(8), 4, num_workers=1, shuffle=True, multiprocessing_context=method, persistent_workers=True
        )
    )


def test_out_of_order():
    numbers = TensorDataset(torch.arange(40))
    loader = SharedLoader(numbers, 4, 2, in_order=False, shuffle=True, persistent_workers=True)
    for _ in range(3):
        next(iter(loader))
        assert sorted(torch.cat([batch for (batch,) in loader]).tolist()) == list(range(40))


def alone(samples):
    return torch.stack([number for number, _ in samples])


def paired(samples):
    return alone(samples), torch.stack([label for _, label in samples])


def swapped(samples):
    number, label = paired(samples)
    return {"label": label, "number": number}


def alternating(samples):
    """Another nesting with every other batch."""
    return (alone if int(samples[0][0]) % 8 else paired)(samples)


@pytest.mark.parametrize("mode", ["read", "cow"])
@pytest.mark.parametrize("collate", [None, alone, paired, swapped, alternating])
def test_nestings(collate, mode):
    """Those that are put together without objects between, and the others."""
    numbers = TensorDataset(torch.arange(23.0), torch.arange(23))
    kept = [list(DataLoader(numbers, 4, num_workers=1, collate_fn=collate))] * 2
    loader = SharedLoader(numbers, 4, 1, collate_fn=collate, mode=mode, persistent_workers=True)
    same([list(loader), list(loader)], kept)
    loader.close()


def test_tensors_look_at_slots():
    loader = SharedLoader(mine.Nested(), 4, 1, collate_fn=mine.own)
    kept = list(loader)
    assert all(batch["again"] is batch["all"] for batch in kept)
    assert [batch["all"][0, 0, 0].item() for batch in kept] == [0, 4, 8, 12, 16, 20]
    (number, *_) = SharedLoader(TensorDataset(torch.arange(8)), 4, 1)
    with open("/proc/self/maps") as maps:
        inside = [line for line in maps if _covers(line, number[0].data_ptr())]
    # Shared memory, which this process may not write.
    assert len(inside) == 1 and inside[0].split()[1] == "r--s"


def _covers(line, address):
    first, last = (int(end, 16) for end in line.split()[0].split("-"))
    return first <= address < last


def test_writing_to_a_copy_of_its_own():
    loader = SharedLoader(TensorDataset(torch.arange(40)), 8, 2, mode="cow", persistent_workers=True)
    for _ in range(2):
        for at, (numbers,) in enumerate(loader):
            numbers += 1
            assert numbers.tolist() == list(range(8 * at + 1, 8 * at + 9))


def test_tensors_that_are_not_plain():
    for one, other in zip(SharedLoader(mine.Odd(), 2, 1, collate_fn=mine.listed), range(0, 6, 2), strict=True):
        assert one[1].is_sparse and one[1].to_dense()[0, 0] == other + 1
    (batch, *_) = SharedLoader(mine.Nested(), 4, 1, collate_fn=mine.weighted)
    assert batch.requires_grad and batch.shape == (4, 2, 3)
    assert empty((2, 3), torch.int8).shape == (2, 3) and empty(4).dtype == torch.float32


def test_workers_know_themselves():
    told = torch.cat(list(SharedLoader(mine.Told(), 1, 2, generator=torch.Generator().manual_seed(1))))
    assert told[:, 0].tolist() == [0, 1, 0, 1] and (told[:, 1] == 2).all()
    assert (told[:, :3] == told[:, 3:]).all() and told[1, 2] == told[0, 2] + 1


@pytest.mark.parametrize("kind", [ValueError, KeyError, IndexError])
def test_errors_are_torchs(kind):
    texts = []
    for loader in (DataLoader(mine.Failing(kind), 4, num_workers=2), SharedLoader(mine.Failing(kind), 4, 2)):
        batches = iter(loader)
        got = [next(batches).tolist() for _ in range(3)]
        with pytest.raises(kind) as caught:
            next(batches)
        texts.append(str(caught.value))
        got.extend(batch.tolist() for batch in batches)
        assert got == [list(range(at, at + 4)) for at in (0, 4, 8, 16, 20)]
    for text in texts:
        assert text.startswith(f"Caught {kind.__name__} in ") and "worker process 1.\nOriginal Traceback" in text
        assert "loader_torch_samples.py" in text and "no 13" in text


def test_errors_of_stacking_are_torchs():
    uneven = [torch.zeros(2), torch.zeros(3)]
    for loader in (DataLoader(uneven, 2, num_workers=1), SharedLoader(uneven, 2, 1)):
        with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
            list(loader)
    for loader in (DataLoader([None, None], 2, num_workers=1), SharedLoader([None, None], 2, 1)):
        with pytest.raises(TypeError, match="NoneType"):
            list(loader)


def test_a_killed_worker():
    batches = iter(SharedLoader(samples.Failing("killed"), 4, 2))
    pids = batches.worker_pids
    with pytest.raises(RuntimeError, match=rf"\(pid {pids[1]}\) exited unexpectedly with exit code -9"):
        list(batches)
    gone(pids)


def test_timeout():
    batches = iter(SharedLoader(samples.Failing("sleeps", at=4), 4, 1, timeout=60))
    next(batches)  # the worker starts, which may take long
    batches._take.__self__._timeout = 0.5
    with pytest.raises(RuntimeError, match="timed out after 0.5 seconds: raise timeout="):
        next(batches)


def test_two_loaders_on_one_broker_leave_nothing():
    with tensorlend.embedded() as broker, broker.connect() as client:
        numbers = TensorDataset(torch.arange(40))
        one = SharedLoader(numbers, 4, 1, shuffle=True, address=broker.address)
        two = SharedLoader(numbers, 4, 2, client=client)
        first, second = iter(one), iter(two)
        pids = first.worker_pids + second.worker_pids
        taken = [(a.tolist(), b.tolist()) for (a,), (b,) in zip(first, second, strict=True)]
        assert sorted(sum((a for a, _ in taken), [])) == sum((b for _, b in taken), []) == list(range(40))
        del first, second
        gone(pids)
        assert client.streams() == [] and client.list() == []


def test_pinning_without_an_accelerator_warns():
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator: memory is pinned")
    with pytest.warns(UserWarning, match="no accelerator"):
        batches = list(SharedLoader(TensorDataset(torch.arange(8)), 4, 1, pin_memory=True))
    assert torch.cat([batch for (batch,) in batches]).tolist() == list(range(8))


def test_pinning():
    if not torch.accelerator.is_available():
        pytest.skip("there is no accelerator: memory cannot be pinned")
    loader = SharedLoader(mine.Nested(), 4, 2, pin_memory=True, persistent_workers=True)
    for _ in range(2):
        batches = list(loader)
        assert all(batch["picture"].is_pinned() and batch["point"].y[0].is_pinned() for batch in batches)
        same([batch["label"].tolist() for batch in batches], [list(range(at, min(at + 4, 23))) for at in range(0, 23, 4)])


class Pinnable:
    """Pins itself, in its way."""

    def __init__(self, value):
        self.value = value
        self.pinned = False

    def pin_memory(self):
        self.pinned = True
        return self


def holder(batch):
    """A collate_fn whose result pins itself."""
    return {"held": Pinnable(batch), "text": "as it is", "pair": mine.Point(1, [Pinnable(2)])}


def test_pinning_of_a_batchs_own_objects():
    """All but the driver's part: objects that pin themselves, errors, an epoch that is broken off."""
    from tensorlend.loader.pinned import Pinned

    loader = SharedLoader(samples.Failing("value"), 4, 2, collate_fn=holder)
    batches = Pinned(iter(loader))
    pids = batches.worker_pids
    got = [next(batches) for _ in range(3)]
    assert all(batch["held"].pinned and batch["pair"].y[0].pinned and batch["text"] == "as it is" for batch in got)
    with pytest.raises(ValueError, match="no 13"):
        next(batches)
    assert len(list(batches)) == 6 and next(batches, None) is None
    gone(pids)
    batches = Pinned(iter(loader))
    pids = batches.worker_pids
    next(batches)
    del batches
    gone(pids)
    batches = Pinned(iter(SharedLoader(samples.Failing("killed"), 4, 2, collate_fn=holder)))
    with pytest.raises(RuntimeError, match="SIGKILL"):
        list(batches)
    assert list(batches) == []


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"multiprocessing_context": "spawn"},
        {"num_workers": 1, "multiprocessing_context": "thread"},
        {"num_workers": 1, "multiprocessing_context": 5},
    ],
)
def test_arguments_that_cannot_be_raise_what_torch_raises(options):
    with pytest.raises((ValueError, TypeError)) as theirs:
        DataLoader(mine.Nested(), **options)
    with pytest.raises(theirs.type):
        SharedLoader(mine.Nested(), **options)


def test_more_arguments_that_cannot_be():
    for options in ({"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}):
        with pytest.raises(ValueError):
            SharedLoader(mine.Counted(), **options)
    with pytest.raises(TypeError, match="keywords"):
        SharedLoader(mine.Nested(), 4, True)
    with pytest.raises(ValueError, match="DataPipes"):
        SharedLoader(torch.utils.data.datapipes.iter.IterableWrapper([1]), 4, 1)
    loader = SharedLoader(mine.Nested(), 4, 2)
    assert isinstance(loader, DataLoader) and loader.num_workers == 2
    with pytest.raises(ValueError):
        loader.batch_size = 8


def test_nothing_of_torch_changes_in_the_trainer():
    table = dict(torch.utils.data._utils.collate.default_collate_fn_map)
    list(SharedLoader(mine.Nested(), 4, 1))
    assert torch.utils.data._utils.collate.default_collate_fn_map == table
    assert torch.utils.data.get_worker_info() is None and os.getpid() > 0


def made_anew(loader):
    """Lightning makes new loaders with its own sampler. It passes the attributes that have the names of arguments."""
    attributes = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    attributes["multiprocessing_context"] = loader.multiprocessing_context
    parameters = inspect.signature(loader.__init__).parameters
    arguments = {
        name: attributes[name]
        for name, parameter in parameters.items()
        if name in attributes and parameter.default is not attributes[name]
    }
    if loader.batch_sampler is not None:
        arguments.pop("batch_sampler", None)
    return type(loader)(**arguments | {"sampler": loader.sampler, "shuffle": False})


def by_lightning(loader):
    """By Lightning itself."""
    data = pytest.importorskip("lightning.fabric.utilities.data", reason="lightning is not installed")
    return data._update_dataloader(loader, loader.sampler)


def in_a_hook_of_lightning(loader):
    """Lightning notes arguments, too, while a hook of its module makes loaders."""
    data = pytest.importorskip("lightning.fabric.utilities.data", reason="lightning is not installed")
    with data._replace_dunder_methods(DataLoader, "dataset"):
        loader = SharedLoader(loader.dataset, 4, 2, address=loader.address, namespace=loader.namespace, client=loader.client, mode="cow")
    return data._update_dataloader(loader, loader.sampler)


@pytest.mark.parametrize("how", [made_anew, by_lightning, in_a_hook_of_lightning])
def test_a_loader_that_is_made_anew_keeps_its_own_arguments(how):
    with tensorlend.embedded() as broker, broker.connect() as client:
        numbers = TensorDataset(torch.arange(8))
        for options in ({"address": broker.address, "namespace": client.namespace}, {"client": client}):
            loader = how(SharedLoader(numbers, 4, 2, mode="cow", prefetch_factor=3, **options))
            assert type(loader) is SharedLoader and loader.mode == "cow" and loader.num_workers == 2
            assert {name: getattr(loader, name) for name in options} == options
            before = client.stat()["clients"]
            batches = iter(loader)
            (first,) = next(batches)
            assert client.stat()["clients"] >= before + 2
            first += 1
            assert first.tolist() == [1, 2, 3, 4]
            del batches


LIGHTNING = """
import lightning
import torch
from torch.utils.data import TensorDataset

from tensorlend.torch import SharedLoader


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, _):
        loader = self.trainer.train_dataloader
        assert type(loader) is SharedLoader and loader.mode == "cow" and type(loader.sampler).__name__ == "DistributedSampler"
        (numbers,) = batch
        numbers += 1
        return self.layer(numbers).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    loader = SharedLoader(TensorDataset(torch.ones(64, 3)), 4, 2, mode="cow", shuffle=True, persistent_workers=True)
    trainer = lightning.Trainer(
        max_epochs=1, limit_train_batches=3, accelerator="cpu", devices=2, strategy="ddp_fork", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Module(), loader)
"""


def program(source):
    """Runs a program as a main program, in the process of its own that calls this."""
    exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})


def test_a_fit_of_lightning_in_forked_processes_ends():
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    process = multiprocessing.get_context("spawn").Process(target=program, args=(LIGHTNING,))
    process.start()
    process.join(120)
    try:
        assert process.exitcode == 0
    finally:
        process.kill()


def test_workers_warn_of_nothing():
    """A warning of torch in a worker is an error of its epoch."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = SharedLoader(TensorDataset(torch.arange(40)), 4, 2, shuffle=True, multiprocessing_context="fork")
        assert sorted(torch.cat([batch for (batch,) in loader]).tolist()) == list(range(40))
