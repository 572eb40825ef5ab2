"""The loader for numpy: the same batches as without workers, errors, deaths, and nothing left behind."""

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time

import loader_samples as samples
import numpy as np
import pytest
from children import in_child
from waiting import eventually, gone, limited

import tensorlend
from tensorlend.numpy import ArrayDataset, SharedLoader, default_collate, empty, get_worker_info

HERE = os.path.dirname(__file__)


@pytest.fixture(autouse=True)
def time_limit():
    with limited(120):
        yield


def labels(batches):
    return [batch[1].tolist() for batch in batches]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {"shuffle": True, "drop_last": True},
        {"sampler": [5, 3, 11, 2, 2, 19]},
        {"batch_sampler": [[1, 2], [3], [22, 0, 7]]},
        {"shuffle": True, "prefetch_factor": 1},
        {"shuffle": True, "persistent_workers": True, "prefetch_factor": 5},
        {"mode": "cow"},
    ],
)
def test_batches_are_those_of_no_workers(workers, options):
    size = {} if "batch_sampler" in options else {"batch_size": 4}
    here = {key: value for key, value in options.items() if key not in ("prefetch_factor", "persistent_workers")}
    alone = SharedLoader(samples.Nested(), **size, **here, generator=7)
    shared = SharedLoader(samples.Nested(), **size, workers=workers, **options, generator=7)
    for _ in range(2):
        samples.same(list(shared), list(alone))
    assert len(shared) == len(alone) == len(list(alone))
    shared.close()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_start_methods(method):
    loader = SharedLoader(samples.Numbers(), 16, 2, multiprocessing_context=method, worker_init_fn=samples.mark)
    assert labels(loader) == [list(range(16)), list(range(16, 32)), list(range(32, 40))]
    marked = SharedLoader(
        samples.Numbers(), 16, 2, multiprocessing_context=method, worker_init_fn=samples.mark, collate_fn=samples.marked
    )
    assert [batch[0] for batch in marked] == [100, 101, 100]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"sampler": []}, {"drop_last": True, "batch_size": 41}])
def test_epochs_without_batches(options):
    dataset = samples.Numbers(40 if "batch_size" in options else 0)
    loader = SharedLoader(dataset, workers=2, persistent_workers=True, **options)
    assert [list(loader), list(loader), len(loader)] == [[], [], 0]
    loader.close()


def test_samples_one_by_one():
    loader = SharedLoader(samples.Numbers(7), None, 2, shuffle=True, generator=1)
    one = list(loader)
    # The loader passes numbers on as they are, not as arrays.
    assert sorted(label for _, label in one) == list(range(7)) and type(one[0][1]) is int
    assert all((picture == label).all() for picture, label in one)
    assert len(loader) == 7


@pytest.mark.parametrize("named", [False, True])
def test_arrays_are_gathered_as_they_would_be_collated(named):
    arrays = [np.random.default_rng(0).random((50, 3)).astype("f4"), np.arange(50) % 2 == 0]
    dataset = ArrayDataset(x=arrays[0], even=arrays[1]) if named else ArrayDataset(*arrays)
    order = [[0, 49, -1, 7], [-50]]
    want = [default_collate([dataset[i] for i in part]) for part in order]
    samples.same(list(SharedLoader(dataset, batch_sampler=order, workers=2)), want)
    samples.same(list(SharedLoader(dataset, batch_sampler=order)), want)
    with pytest.raises(IndexError, match="out of range"):
        list(SharedLoader(dataset, sampler=[3, 50], workers=1))
    with pytest.raises(ValueError, match="differ"):
        ArrayDataset(np.arange(3), np.arange(4))


def test_arrays_look_at_slots_and_keep_them():
    kept = list(SharedLoader(samples.Numbers(200, (1000,)), 10, 2))
    assert all((pictures == np.array(numbers)[:, None]).all() for pictures, numbers in kept)
    pictures = kept[0][0]
    assert not pictures.flags.owndata and not pictures.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        pictures[0, 0] = 1


def test_slots_come_back():
    config = "[pool]\nbytes_max = '96MiB'\nsegment_bytes = '4MiB'\n"
    with tensorlend.embedded(config) as broker:
        loader = SharedLoader(samples.Numbers(1600, (250_000,)), 4, 2, address=broker.address)
        # 400 batches of 4 MB, of which two are held at a time.
        before = None
        for batch in loader:
            if before is not None:
                assert (before[0][:, -1] == before[1]).all()
            before = batch


def test_writing_to_a_copy_of_its_own():
    with SharedLoader(samples.Numbers(), 20, 1, mode="cow") as loader:
        for pictures, numbers in loader:
            pictures += 1
            assert (pictures[:, 0] == numbers + 1).all()


def test_arrays_outlive_loader_and_broker():
    pictures, numbers = next(iter(SharedLoader(samples.Numbers(), 8, 1)))
    gc.collect()
    assert (pictures[:, 0] == np.arange(8)).all() and numbers.tolist() == list(range(8))


def test_a_trainer_that_keeps_all_batches_is_told_when_memory_is_used_up():
    config = "[pool]\nbytes_max = '96MiB'\nsegment_bytes = '4MiB'\n"
    with tensorlend.embedded(config) as broker:
        batches = iter(SharedLoader(samples.Numbers(400, (250_000,)), 4, 2, address=broker.address))
        kept = []
        with pytest.raises(tensorlend.LimitError, match="loader worker process"):
            for batch in batches:
                kept.append(batch)
        assert 10 < len(kept) < 30
        assert all((pictures[:, -1] == numbers).all() for pictures, numbers in kept)
        # The loader continues once the kept batches are returned; batches that it could not make before are lost.
        last, _ = kept[-1][1].tolist()[-1], kept.clear()
        del batch
        while last < 399:
            try:
                _, numbers = next(batches)
                assert numbers[0] > last
                last = numbers[-1]
            except tensorlend.LimitError:
                assert last < 200


def test_custom_collate():
    alone = list(SharedLoader(samples.Numbers(), 8, collate_fn=samples.both))
    shared = list(SharedLoader(samples.Numbers(), 8, 2, collate_fn=samples.both))
    for one, other in zip(alone, shared, strict=True):
        samples.same(one.pop("batch").labels, other["batch"].labels)
        assert isinstance(other.pop("batch"), samples.Holder)
        assert other["again"] is other["pictures"] and not other["pictures"].flags.owndata
        samples.same(one, other)
    (whole, *_) = SharedLoader(samples.Numbers(), 8, 1, collate_fn=samples.reshaped)
    assert whole.shape == (4, 8) and (whole.ravel() == np.repeat(np.arange(8), 4)).all()


def test_what_no_message_can_carry_is_pickled():
    odd = [np.array(["a", "bc"]), np.array([{1}], object), np.arange(3, dtype=">i4"), np.zeros((0, 3)), np.array(5), "x" * 100_000]
    (batch,) = SharedLoader([0], 1, 1, collate_fn=lambda _: odd, multiprocessing_context="fork")
    samples.same(batch, odd)
    many = [np.array([i]) for i in range(5000)]
    (batch,) = SharedLoader([0], 1, 1, collate_fn=lambda _: many, multiprocessing_context="fork")
    samples.same(batch, many)
    for batch in ([], {}, (), None, ["text"]):
        assert list(SharedLoader([0], 1, 1, collate_fn=lambda _, batch=batch: batch, multiprocessing_context="fork")) == [batch]


def test_empty_without_a_worker_and_collate_errors():
    array = empty((2, 3), "int8")
    assert array.shape == (2, 3) and array.flags.owndata and get_worker_info() is None
    with pytest.raises(TypeError, match="NoneType"):
        default_collate([None])
    with pytest.raises(ValueError, match="shape"):
        default_collate([np.zeros(2), np.zeros(3)])
    with pytest.raises(ValueError, match="members"):
        default_collate([(1, 2), (1,)])
    assert default_collate([np.float32(1), np.float32(2)]).dtype == np.float32
    assert default_collate([np.zeros(2, "i4"), np.zeros(2, "f8")]).dtype == np.float64


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_iterated(workers):
    loader = SharedLoader(samples.Counted(), 4, workers)
    shares = [list(range(worker, 31, workers)) for worker in range(workers)]
    parts = [[share[at : at + 4] for at in range(0, len(share), 4)] for share in shares]
    want = [part for turn in range(8) for part in [share[turn] for share in parts if turn < len(share)]]
    assert [batch[:, 0].tolist() for batch in loader] == want
    dropped = [batch[:, 0].tolist() for batch in SharedLoader(samples.Counted(), 4, workers, drop_last=True)]
    assert dropped == [part for part in want if len(part) == 4]
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    persistent = SharedLoader(samples.Counted(), 4, workers, persistent_workers=True, in_order=False)
    for _ in range(3):
        assert sorted(number for batch in persistent for number in batch[:, 0].tolist()) == list(range(31))
    persistent.close()


def test_out_of_order_a_slow_worker_holds_nobody_up():
    made = multiprocessing.get_context("fork").Semaphore(0)

    class Slow(samples.Numbers):
        def __getitem__(self, index):
            if index == 0:
                for _ in range(30):
                    assert made.acquire(timeout=60)
            else:
                made.release()
            return super().__getitem__(index)

    got = [numbers[0] for _, numbers in SharedLoader(Slow(), 1, 2, in_order=False, multiprocessing_context="fork")]
    assert sorted(got) == list(range(40)) and got.index(0) > 20


def test_workers_know_themselves_and_draw_differently():
    loader = SharedLoader(samples.Told(), 1, 2, generator=3)
    told = np.concatenate(list(loader))
    assert told[:, 0].tolist() == [0, 1, 0, 1] and (told[:, 1] == 2).all() and (told[:, 3] == 1).all()
    assert told[1, 2] == told[0, 2] + 1 and len(set(told[:, 4])) == 2 and os.getpid() not in told[:, 4]
    drawn = [np.concatenate(list(SharedLoader(samples.Drawing(), 5, 2, generator=seed))) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0][:, 1:] != drawn[2][:, 1:]).all() and len(set(drawn[0][:, 1])) == 40


@pytest.mark.parametrize(("what", "kind"), [("value", ValueError), ("key", KeyError), ("odd", RuntimeError), ("stop", RuntimeError)])
@pytest.mark.parametrize("sampler", [None, range(40)])
def test_errors_of_workers_and_what_comes_after(what, kind, sampler):
    batches = iter(SharedLoader(samples.Failing(what), 4, 2, sampler=sampler))
    assert [next(batches)[1][0] for _ in range(3)] == [0, 4, 8]
    with pytest.raises(kind) as caught:
        next(batches)
    assert type(caught.value) is kind
    text = str(caught.value)
    assert "loader worker process 1" in text and "loader_samples.py" in text and "no 13" in text and "\n" in text
    # As with torch's loader, the next batches follow.
    assert [batch[1][0] for batch in batches] == [16, 20, 24, 28, 32, 36]


def test_errors_of_iterated_datasets_and_of_the_beginning():
    batches = iter(SharedLoader(samples.Counted(20, fail_at=9), 2, 2))
    got = []
    with pytest.raises(ValueError, match="no 9"):
        got.extend(batch[:, 0].tolist() for batch in batches)
    assert sorted(number for batch in batches for number in batch[:, 0].tolist())[-1] == 18
    with pytest.raises(OSError, match="worker 0 cannot begin"):
        list(SharedLoader(samples.Numbers(), 4, 2, worker_init_fn=samples.fail_to_begin))


@pytest.mark.parametrize(("what", "told"), [("killed", "exit code -9: killed by SIGKILL"), ("exits", "exit code 7")])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_worker_that_dies_is_named(what, told, in_order):
    batches = iter(SharedLoader(samples.Failing(what), 4, 2, in_order=in_order))
    pids = batches.worker_pids
    with pytest.raises(RuntimeError, match=rf"worker 1 \(pid {pids[1]}\) exited unexpectedly with {told}"):
        list(batches)
    gone(pids)


def test_a_worker_killed_while_it_is_waited_for_is_noticed():
    batches = iter(SharedLoader(samples.Failing("sleeps", at=0), 4, 2))
    pids = batches.worker_pids
    killer = subprocess.Popen([sys.executable, "-c", f"import os,time; time.sleep(.5); os.kill({pids[0]}, 9)"])
    with pytest.raises(RuntimeError, match=f"pid {pids[0]}"):
        next(batches)
    assert killer.wait() == 0


@pytest.mark.parametrize("in_order", [True, False])
def test_a_persistent_loader_whose_worker_died_starts_others(in_order):
    loader = SharedLoader(samples.Numbers(), 4, 2, persistent_workers=True, in_order=in_order)
    pids = iter(loader).worker_pids
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=f"pid {pids[1]}"):
        for _ in range(3):
            list(loader)
    assert sorted(number for _, numbers in loader for number in numbers) == list(range(40))
    loader.close()


@pytest.mark.parametrize("prefetch", [1, 4])
def test_a_trainer_may_be_slow_now_and_then(prefetch):
    """Workers first poll for room, and later wait for a wakeup: both ways continue."""
    data = ArrayDataset(np.arange(24))
    with SharedLoader(data, 1, workers=2, prefetch_factor=prefetch) as loader:
        taken = []
        for number, (values,) in enumerate(loader):
            time.sleep((0, 0.001, 0.3)[number % 3] if number < 9 else 0)
            taken += values.tolist()
    assert taken == list(range(24))


def test_timeout():
    batches = iter(SharedLoader(samples.Failing("sleeps", at=4), 4, 1, timeout=60))
    next(batches)  # the worker starts, which may take long
    batches._take.__self__._timeout = 3
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="timed out after 3 seconds: raise timeout="):
        next(batches)
    assert 2.4 < time.monotonic() - began


def test_persistent_workers_over_broken_off_epochs():
    loader = SharedLoader(samples.Numbers(), 3, 2, persistent_workers=True, shuffle=True, generator=4)
    pids = iter(loader).worker_pids
    for taken in (0, 1, 5, 14):
        batches = iter(loader)
        assert batches.worker_pids == pids
        got = [next(batches)[1] for _ in range(taken)]
        assert len(np.unique(np.concatenate([*got, []]))) == sum(map(len, got))
    first, second = iter(loader), iter(loader)
    with pytest.raises(RuntimeError, match="another epoch"):
        next(first)
    assert sorted(np.concatenate([numbers for _, numbers in second])) == list(range(40))
    loader.close()
    gone(pids)


def test_two_loaders_at_once():
    one, two = (SharedLoader(samples.Numbers(), 4, 2, shuffle=True, generator=seed) for seed in (1, 2))
    pairs = [(a.tolist(), b.tolist(), c.tolist()) for (_, a), (_, b), (_, c) in zip(one, two, one, strict=True)]
    for column in zip(*pairs, strict=True):
        assert sorted(sum(column, [])) == list(range(40))


def test_an_iterator_in_a_cycle_of_garbage_ends():
    loader = SharedLoader(samples.Numbers(), 4, 2)
    batches = iter(loader)
    pids = batches.worker_pids
    next(batches)
    cycle = [batches, loader]
    cycle.append(cycle)
    del batches, loader, cycle
    gc.collect()
    gone(pids)


def test_nothing_is_left_behind():
    with tensorlend.embedded() as broker, broker.connect() as client:
        for taken in (10, 3, 0):
            for options in ({"shuffle": True}, {"sampler": range(40)}, {"in_order": False}):
                loader = SharedLoader(samples.Numbers(), 4, 2, address=broker.address, **options)
                batches = iter(loader)
                pids = batches.worker_pids
                for _ in range(taken):
                    next(batches)
                if taken == 10:
                    assert next(batches, None) is None
                del batches, loader
                gone(pids)
        eventually(lambda: (client.streams(), client.list()), lambda: not client.streams() and not client.list())
        # This client is the only one that the daemon knows.
        eventually(client.stat, lambda: client.stat()["clients"] == 1)


def script(text):
    package = os.path.dirname(os.path.dirname(tensorlend.__file__))
    path = os.pathsep.join(filter(None, [HERE, package, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )


TRAINER = """
    import loader_samples as samples
    from tensorlend.numpy import SharedLoader
    if __name__ == "__main__":
        batches = iter(SharedLoader(samples.Numbers(4000, delay=0.001), 4, 2, multiprocessing_context={method!r}))
        # Batches come in order, so both workers have started after two.
        next(batches), next(batches)
        print(*batches.worker_pids, flush=True)
        for batch in batches:
            pass
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_workers_end_with_the_trainer(how, method):
    trainer = script(TRAINER.format(method=method))
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(pids) == 2, trainer.communicate()
    if how == "killed":
        trainer.kill()
    else:
        # Ctrl-C sends the signal to all processes in the foreground.
        os.killpg(trainer.pid, signal.SIGINT)
    gone(pids)
    _, errors = trainer.communicate(timeout=20)
    if how == "interrupted":
        assert errors.count("KeyboardInterrupt") == 1 and "loader worker" not in errors, errors


def test_a_trainer_that_ends_in_the_middle_ends_in_peace():
    trainer = script(TRAINER.format(method="fork").replace("for batch in batches:\n            pass", "raise SystemExit(3)"))
    out, errors = trainer.communicate(timeout=60)
    assert trainer.returncode == 3 and errors == ""
    gone([int(pid) for pid in out.split()])


def test_torch_is_not_imported():
    out, errors = script(
        """
        import sys
        from tensorlend.numpy import ArrayDataset, SharedLoader
        print(sum(len(b[0]) for b in SharedLoader(ArrayDataset(list(range(10))), 3, 1)), "torch" in sys.modules)
        """
    ).communicate(timeout=60)
    assert out.split() == ["10", "False"], errors


def test_a_loader_can_be_pickled_and_used_in_a_forked_child():
    # A fork server belongs to the process that started it.
    loader = SharedLoader(samples.Numbers(), 4, 1, persistent_workers=True, multiprocessing_context="fork")
    assert len(list(loader)) == 10
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 10

    def work():
        found = labels(loader)
        loader.close()
        return found

    assert in_child(work) == [list(range(at, at + 4)) for at in range(0, 40, 4)]
    assert len(list(loader)) == 10
    loader.close()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"workers": -1}, ValueError),
        ({"workers": True}, TypeError),
        ({"workers": 1, "num_workers": 2}, ValueError),
        ({"timeout": -1}, ValueError),
        ({"prefetch_factor": 2}, ValueError),
        ({"workers": 1, "prefetch_factor": -2}, ValueError),
        ({"persistent_workers": True}, ValueError),
        ({"shuffle": True, "sampler": [1]}, ValueError),
        ({"batch_sampler": [[1]], "batch_size": 2}, ValueError),
        ({"batch_sampler": [[1]], "drop_last": True}, ValueError),
        ({"batch_size": None, "drop_last": True}, ValueError),
        ({"batch_size": 0}, ValueError),
        ({"multiprocessing_context": "spawn"}, ValueError),
        ({"workers": 1, "multiprocessing_context": "thread"}, ValueError),
        ({"workers": 1, "multiprocessing_context": 5}, TypeError),
        ({"mode": "write"}, ValueError),
    ],
)
def test_arguments_that_cannot_be(options, kind):
    with pytest.raises(kind):
        SharedLoader(samples.Numbers(), **options)
    if "shuffle" in options or "batch_sampler" in options:
        with pytest.raises(ValueError):
            SharedLoader(samples.Counted(), **options)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("trainer", [samples.train_under_a_handler, samples.train_on_slow_samples])
def test_a_trainer_that_is_a_child_itself_ends(trainer, method):
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=trainer, args=(there, method))
    process.start()
    there.close()
    pids = here.recv()
    process.join(60)
    try:
        assert process.exitcode == 0
    finally:
        process.kill()
    gone(pids)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_take_signals_as_programs_do(method):
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        loader = SharedLoader(samples.Numbers(4), 4, 1, collate_fn=samples.signals, multiprocessing_context=method)
        assert next(iter(loader)).tolist() == [True, True]
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_arguments_are_attributes():
    """Finds the workers by their names, as a program does that makes a loader again."""
    with tensorlend.embedded() as broker, broker.connect() as client:
        one = SharedLoader(samples.Numbers(), 4, 1, address=broker.address, namespace=client.namespace, mode="cow")
        assert (one.address, one.namespace, one.client, one.mode) == (broker.address, client.namespace, None, "cow")
        assert SharedLoader(samples.Numbers(), 4, 1, client=client).client is client


def test_a_mask_is_not_dropped():
    def arrays(*masks):
        return [np.ma.MaskedArray([1.0, 2.0], mask=mask) for mask in masks]

    assert default_collate(arrays([False, False], False)).tolist() == [[1.0, 2.0], [1.0, 2.0]]
    for batch in (arrays(False, [True, False]), [{"a": array} for array in arrays(True)], [np.zeros(2), *arrays(True)]):
        with pytest.raises(tensorlend.DTypeError, match=r"masked.*pass array.filled\(value\)"):
            default_collate(batch)
    with pytest.raises(tensorlend.DTypeError, match="masked"):
        ArrayDataset(*arrays(True))
