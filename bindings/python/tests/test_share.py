"""One copy of an object for all processes of the machine: `tensorlend.share`."""

import array
import collections
import contextlib
import copy
import dataclasses
import functools
import gc
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from children import in_child
from waiting import eventually

import tensorlend
from tensorlend import FrozenList, share

pytest.importorskip("msgpack", reason="msgpack is not installed")

METHODS = ["fork", "spawn", "forkserver"]


class Images:
    """A map-style data set, as users write it."""

    def __init__(self, count):
        self.images = np.arange(count * 64, dtype=np.float32).reshape(count, 8, 8)
        self.again = self.images
        self.labels = np.asfortranarray(np.arange(count * 8).reshape(count, 8))
        self.paths = [f"train/{number:08d}.jpg" for number in range(count)]
        self.jpegs = [bytes([number % 256]) * (number % 5000) for number in range(count)]
        self.classes = ["cat", "dog"]
        self.epoch = 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index], self.paths[index], len(self.jpegs[index])


def is_equal(found, wanted):
    return all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_a_data_set_keeps_its_type_and_shares_its_large_parts(client):
    plain = Images(5000)
    shared = share(plain, client=client)
    assert type(shared) is Images and shared.classes == ["cat", "dog"] and len(shared) == 5000
    assert type(shared.paths) is type(shared.jpegs) is FrozenList and shared.images is shared.again
    assert shared.labels.flags.f_contiguous and all(is_equal(shared[index], plain[index]) for index in (0, 7, -1))
    whole = plain.images.nbytes + plain.labels.nbytes + sum(map(len, plain.jpegs))
    assert whole < client.list("shared/*")[0].nbytes < 1.5 * whole, "the array with two names is stored once"
    assert len(pickle.dumps(shared)) < 2000
    # What the program changes later is the program's own, and goes with the object.
    shared.epoch, shared.extra = 3, np.arange(3)
    other = pickle.loads(pickle.dumps(shared))
    assert other.epoch == 3 and other.extra.tolist() == [0, 1, 2] and is_equal(other[5], plain[5])


def read(pipe, data, index):
    pipe.send(data[index])


@pytest.mark.parametrize("method", METHODS)
def test_other_processes_see_the_same_memory(client, method):
    plain = Images(2000)
    shared = share(plain, client=client)
    array = share(np.arange(1 << 20), client=client)
    context = multiprocessing.get_context(method)
    for passed, index, wanted in ((shared, 5, plain[5]), (array, 7, (7,)), (array[100:], 5, (105,)), (array.reshape(1024, 1024).T, (3, 5), (5 * 1024 + 3,))):
        here, there = context.Pipe()
        process = context.Process(target=read, args=(there, passed, index), daemon=True)
        process.start()
        assert here.poll(60)
        item = here.recv()
        assert is_equal(item, wanted) if type(item) is tuple else item == wanted[0]
        process.join(60)


def test_arrays_are_read_only_and_say_what_to_type(client):
    array = share(np.arange(10_000.0), client=client)

    def add():
        nonlocal array
        array += 1

    def double():
        array[5:9] *= 2

    for write in (lambda: array.__setitem__(0, 1), lambda: array[5:9].__setitem__(0, 1), lambda: array.setflags(write=True), add, double):
        with pytest.raises(ValueError, match=r"shared and read-only: write to a copy \(mine = array.copy\(\)\)"):
            write()
    with pytest.raises(ValueError, match="read-only"):
        np.add(array, 1, out=array)
    total = array + 1
    total[0] = 5
    mine = array.copy()
    mine += 1
    assert type(total) is np.ndarray and array[0] == 0 and mine[0] == 1 and type(array.sum()) is np.float64
    private = share(np.arange(10_000.0), mode="cow", client=client)
    private += 1
    assert private[0] == 1 and pickle.loads(pickle.dumps(private))[0] == 1, "the private pages are sent by value"


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(5, [("x", "i4"), ("y", "f8")]), np.arange("2026-01", "2026-09", dtype="datetime64[D]"), np.array(7), np.zeros((3, 0)), np.array(["é", "ab"]),
        np.arange(24).reshape(2, 3, 4)[:, ::-1], np.array([{}, 1], object), np.ma.masked_array([1, 2], [True, False]),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)  # fmt: skip
def test_all_arrays_of_numpy(client, array):
    shared = share(array, client=client)
    for found in (shared, pickle.loads(pickle.dumps(shared))):
        assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array)


def test_lambdas_stay_in_the_process(client):
    class Local:
        def __init__(self):
            self.data, self.transform, self.lock = np.arange(10_000), lambda value: value + 1, multiprocessing.Lock()
            self.numbers = (number for number in range(3))

    plain = Local()
    shared = share(plain, client=client)
    assert list(shared.numbers) == [0, 1, 2] and shared.transform is plain.transform and shared.lock is plain.lock and type(shared) is Local and shared.data[5] == 5
    assert in_child(lambda: int(shared.transform(shared.data[5]))) == 6
    with pytest.raises(tensorlend.ArgumentError, match="other processes cannot unpickle this object"):
        share("named", plain, client=client)


def test_the_memory_ends_with_its_last_reader(client):
    shared = share(Images(1000), client=client)
    images, part = shared.images, shared.images[3:5]
    del shared
    gc.collect()
    assert client.list("shared/*"), "an array keeps it"
    del images
    gc.collect()
    assert client.list("shared/*"), "a part of an array keeps it"
    sent = pickle.dumps(part)
    view = np.asarray(part).view()[0]
    del part
    gc.collect()
    assert client.list("shared/*"), "so does a view of numpy"
    del view
    gc.collect()
    eventually("the end of the name", lambda: not client.list("shared/*"))
    with pytest.raises(tensorlend.NotFoundError):
        pickle.loads(sent)


def test_a_forked_child_reads_under_its_parents_lease(client):
    shared = share(Images(1000), client=client)
    sessions = client.stat()["clients"]

    def work():
        seen = shared[999][0].sum(), shared[999][2]
        return float(seen[0]), seen[1], tensorlend.connect(client.address).stat()["clients"]

    assert in_child(work) == (float(shared[999][0].sum()), "train/00000999.jpg", sessions + 1)


def test_sparse_matrices(client):
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    matrix = sparse.random(2000, 2000, 0.01, format="csr", random_state=5)
    shared = share(matrix, client=client)
    assert len(pickle.dumps(shared)) < matrix.data.nbytes / 8 and abs(shared - matrix).max() == 0
    assert (shared[7] != matrix[7]).nnz == 0


def test_frames_of_pandas_and_arrow(client):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = pd.DataFrame({"n": np.arange(20_000), "x": np.arange(20_000.0), "text": pd.array([f"row {n}" for n in range(20_000)], "string[pyarrow]")})
    table = pa.Table.from_pandas(frame)
    for value, is_same in ((frame, frame.equals), (table, table.equals)):
        shared = share(value, client=client)
        sent = pickle.dumps(shared)
        assert type(shared) is type(value) and is_same(shared) and is_same(pickle.loads(sent)) and len(sent) < 10_000
    # Parts and plain tables, too.
    shared = share(table, client=client)
    part = shared.slice(100, 50)
    assert pickle.loads(pickle.dumps(part)).equals(table.slice(100, 50)) and len(pickle.dumps(part)) < 10_000
    assert pickle.loads(pickle.dumps(table.slice(100, 50))).equals(table.slice(100, 50))
    buffers = []
    pickle.dumps(table, protocol=5, buffer_callback=buffers.append)
    assert buffers, "plain tables are pickled as before"


def test_frames_of_polars(client):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = pl.DataFrame({"n": range(1000)})
    shared = share(frame, client=client)
    assert pickle.loads(pickle.dumps(shared)).thaw().equals(frame)


def test_tensors_and_data_sets_of_torch(client):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch.utils.data import DataLoader, TensorDataset

    plain = TensorDataset(torch.arange(60_000.0).reshape(-1, 6), torch.arange(10_000))
    shared = share(plain, client=client)
    assert type(shared) is TensorDataset and len(pickle.dumps(shared)) < 1000
    assert torch.equal(shared.tensors[0], plain.tensors[0]) and type(shared[3][0]) is torch.Tensor
    with pytest.raises(ValueError, match=r"mine = tensor.clone\(\)"):
        shared.tensors[0][0] = 1
    for method in METHODS:
        loader = DataLoader(shared, batch_size=500, num_workers=2, multiprocessing_context=method)
        assert sum(int(x.long().sum() + y.sum()) for x, y in loader) == int(plain.tensors[0].long().sum() + plain.tensors[1].sum())
    bits = share(torch.arange(9, dtype=torch.bfloat16), client=client)
    assert torch.equal(pickle.loads(pickle.dumps(bits)), torch.arange(9, dtype=torch.bfloat16))
    private = share(torch.zeros(10_000), mode="cow", client=client)
    private += 1
    assert private[3] == 1 and pickle.loads(pickle.dumps(private))[3] == 1


def test_data_sets_of_hugging_face(client):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    plain = datasets.Dataset.from_dict({"n": list(range(20_000)), "text": [f"row {n}" for n in range(20_000)]})
    shared = share(plain, client=client)
    assert type(shared) is type(plain) and shared[7] == {"n": 7, "text": "row 7"}
    sent = pickle.dumps(shared)
    assert len(sent) < 10_000 and pickle.loads(sent)[19_999] == plain[19_999]


# Names


def test_the_first_process_builds_and_the_others_map(client):
    calls = []

    def build():
        calls.append(1)
        return Images(1000)

    first, second = (share("images", build, client=client) for _ in range(2))
    assert calls == [1] and is_equal(first[5], second[5]) and len(client.list("*")) == 1 and list(client.streams()) == []
    assert first.images.__array_interface__["data"] == second.images.__array_interface__["data"]
    assert is_equal(share("images", client=client)[5], first[5])
    del first, second
    gc.collect()
    assert client.list("*")[0].name == "images", "a name stays"


def test_versions_by_key_and_by_content(client):
    first = share("set", lambda: np.zeros(5000), key=["a.npy", 17], client=client)
    assert share("set", lambda: 1 // 0, key=["a.npy", 17], client=client)[0] == 0
    assert share("set", lambda: np.ones(5000), key=["a.npy", 18], client=client)[0] == 1 and first[0] == 0
    with pytest.raises(tensorlend.NotFoundError, match=r"no shared object has the name 'set' and this key"):
        share("set", key="other", client=client)
    one = share("content", np.arange(5000), client=client)
    version = client.get_dataset("content").version
    assert share("content", np.arange(5000), client=client)[7] == 7 and client.get_dataset("content").version == version
    assert share("content", np.arange(5001), client=client)[5000] == 5000 and client.get_dataset("content").version != version and one[7] == 7


@pytest.mark.parametrize("ended", ["replaced", "deleted"])
def test_new_workers_open_the_version_of_their_job(client, ended):
    old = share("set", lambda: Images(1000), key=1, client=client)
    if ended == "replaced":
        assert share("set", lambda: "another", key=2, client=client) == "another"
    else:
        client.delete("set")
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    for passed in (old, old, old.images):
        process = context.Process(target=read, args=(there, passed, 5), daemon=True)
        process.start()
        assert here.poll(60)
        item = here.recv()
        assert is_equal(item, old[5]) if passed is old else np.array_equal(item, old.images[5])
        process.join(60)
    assert len(client.list("shared/*")) == 1, "one copy, however many workers open it"
    # A process that has not called share copies nothing.
    assert in_child(lambda: pickle.dumps(old)) and len(client.list("shared/*")) == 1
    del old, passed
    gc.collect()


def test_a_version_that_cannot_be_copied_is_sent_as_it_is(caplog):
    with tensorlend.embedded('[pool]\nbytes_max = "256MiB"\n') as broker, broker.connect() as client:
        old = share("set", np.zeros(90 << 20, np.uint8), client=client)
        client.put("set", np.zeros(90 << 20, np.uint8))
        ballast = client.create(32 << 20, "uint8")
        assert pickle.loads(pickle.dumps(old)).nbytes == old.nbytes and "cannot be copied" in caplog.text
        ballast.drop()
        del old
        gc.collect()


def test_what_is_refused(client):
    with pytest.raises(tensorlend.NotFoundError, match="no shared object has the name 'nothing': pass a function that builds it"):
        share("nothing", client=client)
    client.put("tensor", np.zeros(5))
    with pytest.raises(tensorlend.DTypeError, match="a value that `share` has not published"):
        share("tensor", lambda: 1, client=client)
    with pytest.raises(tensorlend.ArgumentError, match="takes a str as the name"):
        share([1], key="x", client=client)
    with pytest.raises(ZeroDivisionError):
        share("failed", lambda: 1 // 0, client=client)
    assert share("failed", lambda: [1], client=client)[0] == 1, "the next process builds it"


def test_a_namespace_of_several_users_must_be_trusted():
    config = f'[namespace.team]\nwriters = ["{os.getuid()}"]\n'
    with tensorlend.embedded(config) as broker, broker.connect(namespace="team") as other:
        share("set", lambda: [1], client=other, trust_pickle=True)
        with pytest.raises(tensorlend.objects.UntrustedPickleError, match="pass trust_pickle=True"):
            share("set", lambda: [1], client=other)


BUILDER = """
import os, sys, time, numpy as np, tensorlend
client = tensorlend.connect(sys.argv[1])

def build():
    print("builds", flush=True)
    time.sleep(float(sys.argv[2]))
    return {"x": np.full(100_000, os.getpid()), "by": os.getpid()}

found = tensorlend.share("set", build, client=client)
print(found["by"], (found["x"] == found["by"]).all(), flush=True)
"""


def started(socket, seconds):
    return subprocess.Popen([sys.executable, "-c", BUILDER, socket, str(seconds)], stdout=subprocess.PIPE, text=True)


def test_one_of_many_processes_builds(broker, client):
    processes = [started(broker.address, 0.2) for _ in range(6)]
    printed = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sorted(map(len, printed)) == [2, 2, 2, 2, 2, 3], printed
    assert len({words[-2] for words in printed}) == 1 and all(words[-1] == "True" for words in printed)
    assert list(client.streams()) == []


def test_the_object_of_a_killed_builder_is_built_by_another_process(broker, client):
    """A builder is killed 20 times at random moments: each time one of the others takes over, and nobody sees a part."""
    randomly = np.random.default_rng(seed := time.time_ns())
    print("seed", seed)
    for _ in range(20):
        first = started(broker.address, 5)
        assert first.stdout.readline() == "builds\n"
        others = [started(broker.address, 0.0) for _ in range(2)]
        time.sleep(randomly.uniform(0, 0.3))
        first.kill()
        printed = [process.communicate(timeout=60)[0].split() for process in others]
        first.communicate()
        assert sorted(map(len, printed)) == [2, 3] and all(words[-1] == "True" for words in printed), printed
        assert len({words[-2] for words in printed}) == 1
        client.delete("set")


def test_a_waiting_process_ends_with_its_timeout(broker, client):
    first = started(broker.address, 60)
    with contextlib.closing(first.stdout):
        assert first.stdout.readline() == "builds\n"
        with pytest.raises(tensorlend.TimeoutError, match="another process builds 'set'"):
            share("set", lambda: 1, timeout=0.3, client=client)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()


def test_a_second_job_finds_what_the_killed_first_job_shared(script):
    """Also hours later: a daemon without clients ends after idle_exit_s only if it has no names (tests/tests/autostart.rs)."""
    source = (
        "import numpy as np, os, sys, tensorlend\n"
        "data = tensorlend.share('job', lambda: {'x': np.arange(100_000)})\nprint(data['x'].sum())\n"
        "if len(sys.argv) > 1: os.kill(os.getpid(), 9)"
    )
    assert script(source, "die", check=False).returncode == -9
    assert script(source.replace("lambda: {'x': np.arange(100_000)}", "lambda: 1 // 0")).stdout == "4999950000\n"
    script("import tensorlend; tensorlend.connect().delete('job')")


# What was replaced where it must not be


class Named:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


@dataclasses.dataclass(slots=True)
class Slotted:
    rows: list
    values: np.ndarray


LONG = "x" * 300_000

Pair = collections.namedtuple("Pair", "first second")


def sampled():
    """Objects whose reductions contain long tuples, dicts and lists."""
    records = np.zeros(5000, "i4,f8").view(np.recarray)
    many = {f"a{number}": LONG for number in range(3)}
    return {
        "records": records,
        "matrix": np.matrix(np.ones((200, 200))),
        "chars": np.char.array(["abc"] * 5000),
        "objects": np.array([f"text {number}" * 50 for number in range(5000)] + [None], object),
        "text": Named(text=LONG),
        "many": Named(**{f"a{number}": "text " * 100 for number in range(3000)}),
        "keys": Named(cache={(LONG, 1): "v"}, members={tuple(range(50_000))}),
        "slots": Slotted([f"{number}" * 20 for number in range(20_000)], np.arange(10_000)),
        "pair": Pair([f"{number}" * 20 for number in range(20_000)], 5),
        "partial": functools.partial(len, LONG),
        "error": ValueError(LONG, 5),
        "ordered": collections.OrderedDict(many),
        "array": array.array("d", range(50_000)),
    }


@pytest.mark.parametrize("what", sampled())
def test_what_restores_an_object_gets_what_it_wrote(client, what):
    plain = sampled()[what]
    # A partial function is one that builds.
    build = (lambda: plain) if what == "partial" else plain
    for shared in (share(plain, client=client), share("named", build, client=client)):
        for found in (shared, pickle.loads(pickle.dumps(shared))):
            state = lambda it: it.__dict__ if hasattr(it, "__dict__") and it.__dict__ else it  # noqa: E731
            if isinstance(plain, np.ndarray):
                assert type(found) is type(plain) and np.array_equal(found, plain)
            elif what == "slots":
                assert list(found.rows) == plain.rows and np.array_equal(found.values, plain.values)
            elif what == "pair":
                assert list(found.first) == plain.first and found.second == 5 and type(found) is Pair
            elif what == "partial":
                assert found() == 300_000
            elif what == "error":
                assert found.args == plain.args
            else:
                assert state(found) == state(plain)


def test_frames_with_columns_of_objects(client):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pd.DataFrame({"o": ["a" * 100, 1] * 5000, "n": np.arange(10_000)})
    assert share(frame, client=client).equals(frame)
    wide = pd.DataFrame({f"c{number}": pd.array([number] * 4, "Int64") for number in range(1500)})
    assert share(wide, client=client).equals(wide)


def test_short_lists_stay_lists(client):
    plain = Named(names=[f"class {number}" for number in range(2000)], graph=[Named(up=None) for _ in range(2000)], rows=[{"n": 1, "text": "x" * 300}] * 5000)
    for each in plain.graph:
        each.up = plain
    shared = share(plain, client=client)
    assert type(shared.names) is type(shared.graph) is list and shared.names == plain.names
    assert all(each.up is shared for each in shared.graph), "objects that know each other stay one graph"
    assert type(shared.rows) is FrozenList


def test_an_array_in_many_rows_is_written_once(client):
    picture = np.zeros(100_000)
    share([{"picture": picture, "n": number} for number in range(100)], mode="read", client=client)
    shared = share([{"picture": picture, "n": number} for number in range(100)], client=client)
    assert client.list("shared/*")[0].nbytes < 2 * picture.nbytes and np.array_equal(shared[99]["picture"], picture)


def test_what_was_shared_before_is_shared_by_value(client):
    inner = share({"x": np.arange(100_000), "rows": list(range(5000))}, client=client)
    array = share(np.arange(100_000), client=client)
    share("dict", inner, client=client)
    share("list", lambda: share(list(range(2000)), client=client), client=client)
    share("parts", Named(small=array[:10], rows=[{"part": array[number : number + 5]} for number in range(5)], inner=inner), client=client)
    client.put_object("object", {"part": array[7:9], "rows": inner["rows"]})
    del inner, array
    gc.collect()
    eventually("the end of the shared objects", lambda: not client.list("shared/*"))
    assert share("dict", client=client)["x"][7] == 7 and share("list", client=client)[1999] == 1999
    parts = share("parts", client=client)
    assert parts.small.tolist() == list(range(10)) and parts.rows[3]["part"].tolist() == [3, 4, 5, 6, 7] and parts.inner["rows"][4999] == 4999
    assert client.get_object("object")["part"].tolist() == [7, 8]


def test_a_reference_that_was_sent_outlives_its_sender_for_a_while(client):
    sent = pickle.dumps(share(np.arange(100_000), client=client))
    gc.collect()
    assert pickle.loads(sent)[7] == 7


def test_keys_are_compared_as_a_whole(client):
    share("set", lambda: [1], key=[f"file {number}" for number in range(20_000)], client=client)
    assert list(share("set", lambda: [2], key=[f"file {number}" for number in range(19_999)], client=client)) == [2]
    assert list(share("set", lambda: [3], key=1, client=client)) == [3] == list(share("set", lambda: [4], key=1, client=client))
    assert list(share("set", lambda: [5], key="1", client=client)) == [5]
    with pytest.raises(tensorlend.ArgumentError, match="pass text, numbers, or lists and dicts of them"):
        share("set", lambda: [6], key=np.arange(5), client=client)


class Fails:
    def __reduce__(self):
        return fail, ()


def fail():
    raise OSError("not here")


def test_an_object_that_nobody_can_unpickle_is_not_published(client):
    with pytest.raises(tensorlend.ArgumentError, match="'err' cannot be unpickled: not here"):
        share("err", lambda: Named(inner=Fails()), client=client)
    assert list(share("err", lambda: [1], client=client)) == [1] and list(client.streams()) == []
    with pytest.raises(tensorlend.ArgumentError, match="mode is 'read' or 'cow'"):
        share([1], mode="rw", client=client)
    assert client.list("shared/*") == []


def test_tensors_in_modules_and_with_other_strides(client):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    turned = share(torch.arange(60_000.0).reshape(200, 300), client=client)
    turned.t_()
    assert torch.equal(pickle.loads(pickle.dumps(turned)), torch.arange(60_000.0).reshape(200, 300).t())
    layer = torch.nn.Linear(200, 200)
    assert torch.equal(share(layer, client=client).weight, layer.weight)
    parameter = torch.nn.Parameter(share(torch.zeros(200, 200), client=client), requires_grad=False)
    assert parameter.sum() == 0 and torch.equal(copy.deepcopy(turned), turned) and type(copy.deepcopy(turned)) is torch.Tensor
    generator = Named(generator=torch.Generator(), table=torch.ones(10_000, requires_grad=True))
    assert share(generator, client=client).table.requires_grad
    for write in (lambda t: t.mul_(2), lambda t: t.__iadd__(1), lambda t: t.normal_(), lambda t: t.copy_(t + 1), lambda t: t.fill_(3)):
        with pytest.raises(ValueError, match="this tensor is shared and read-only"):
            write(turned)


def test_a_copy_has_no_references(client):
    plain = Named(rows=[{"text": "x" * 500, "n": number} for number in range(5000)], data=np.arange(10_000))
    copied = copy.deepcopy(share(plain, client=client))
    gc.collect()
    eventually("the end of the shared object", lambda: not client.list("shared/*"))
    found = pickle.loads(pickle.dumps(copied))
    assert found.rows == plain.rows and type(found.rows) is list and np.array_equal(found.data, plain.data)


def test_lengths_with_a_period_and_what_is_not_shared(client, caplog):
    plain = Named(rows=[np.zeros(1 + number % 50, np.float32) for number in range(20_000)])
    assert type(share(plain, client=client).rows) is FrozenList and "MiB of this object" not in caplog.text
    plain = Named(rows=[pathlib.Path("x" * 200 + str(number)) for number in range(20_000)])
    assert share(plain, client=client).rows == plain.rows
    assert "MiB of this object are copied into each process" in caplog.text
