"""Objects in lent memory: frozen lists and dicts, put_object and get_object."""

import contextlib
import dataclasses
import datetime
import enum
import functools
import gc
import importlib
import multiprocessing
import os
import pickle
import random
import signal
import struct
import sys

import numpy as np
import pytest
from children import in_child
from places import address, is_in
from waiting import eventually

import tensorlend
from tensorlend import share
from tensorlend.objects import Frozen, FrozenDict, FrozenList, UntrustedPickleError

msgpack = pytest.importorskip("msgpack", reason="msgpack is not installed")
decode, layout = (importlib.import_module(f"tensorlend._objects.{name}") for name in ("decode", "layout"))
Encoder = importlib.import_module("tensorlend._objects.encode").Encoder

METHODS = ["fork", "spawn", "forkserver"]

ROWS = [{"id": i, "text": f"row {i}", "image": np.full((4, 5), i, np.float32), "box": (i, 1.5)} for i in range(100)]


@dataclasses.dataclass
class Point:
    x: int
    values: np.ndarray


def gone(client, pattern="shared/*"):
    eventually(lambda: client.list(pattern), lambda: not client.list(pattern))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -1, 1 << 70, -(1 << 70), 2.5, float("inf"), 3j, "", "text \u20ac", b"", b"bytes", [], (), {}, set(),
        [1, [2, (3, {"a": (4,)})]], {1: 2, (1, "a"): None, b"k": {"n": [None]}}, {1, "a"}, frozenset({(1, 2)}),
        list(range(20_000)), {"deep": [[0] * 5000, ([1] * 5000,)]}, "x" * 100_000,
    ],
    ids=lambda value: f"{type(value).__name__}{len(repr(value))}",
)  # fmt: skip
def test_plain_values_need_no_pickle(client, value):
    client.put_object("x", value)
    assert client.info("x").name == "x" and not client.get_value("x").metadata["pickle"]
    found = client.get_object("x")
    assert found == value and type(found) is type(value)
    assert client.get_object("x", lazy=True).thaw() == value


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(5, np.int8), np.zeros((0, 3)), np.arange(9)[::-2],
        np.array(["a", "bcd"]), np.array([b"a"]), np.array([True, False]), np.array(["2026-11-23"], "datetime64[D]"), np.array([1], ">i4"),
        np.array([1 + 2j], np.complex64), np.array([1.5], np.float16), np.array([3], "timedelta64[25s]"),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)  # fmt: skip
def test_arrays_are_views(client, array):
    client.put_object("x", {"deep": [(array,)]})
    found = client.get_object("x")["deep"][0][0]
    assert found.dtype == array.dtype and found.shape == array.shape and (found == array).all()
    assert found.flags.f_contiguous == array.flags.f_contiguous or not array.flags.c_contiguous
    if array.size:
        assert not found.flags.writeable
        first, last = address(np.asarray(client.get_value("x"))), client.info("x").nbytes
        assert first <= address(found) < first + last and address(found) % 64 == 0


def test_scalars_of_numpy(client):
    values = [np.float32(1.5), np.int64(3), np.bool_(True), np.datetime64("2026-11-23"), np.str_("text"), np.complex128(1j)]
    client.put_object("x", values)
    assert client.get_object("x") == values and [type(v) for v in client.get_object("x")] == [type(v) for v in values]


def test_bfloat16(client):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    client.put_object("x", [np.array([1.5], ml_dtypes.bfloat16)])
    (found,) = client.get_object("x")
    assert found.dtype == ml_dtypes.bfloat16 and found[0] == 1.5


def test_a_frozen_list(client):
    frozen = share(ROWS, client=client)
    assert type(frozen) is FrozenList and len(frozen) == 100 and frozen.nbytes <= client.info(frozen.name).nbytes
    assert frozen[7]["text"] == "row 7" and frozen[-1]["box"] == (99, 1.5) and (frozen[3]["image"] == 3).all()
    assert [row["id"] for row in frozen[90::3]] == [90, 93, 96, 99] and [row["id"] for row in frozen[5:2:-1]] == [5, 4, 3]
    assert [row["id"] for row in frozen] == [row["id"] for row in reversed(frozen)][::-1] == list(range(100))
    assert type(frozen.thaw()) is list and type(share((1, 2), client=client).thaw()) is tuple
    with pytest.raises(IndexError):
        frozen[100]
    assert list(share((i * i for i in range(5)), client=client)) == [0, 1, 4, 9, 16]
    assert "100" in repr(frozen) and 7 in share([5, 7], client=client)


def test_a_frozen_dict(client):
    source = {f"k{i}": {"n": i} for i in range(1000)} | {5: "five", (1, "a"): "pair", None: "none", 2.5: "float", b"k": "bytes"}
    frozen = share(source, client=client)
    assert type(frozen) is FrozenDict and len(frozen) == len(source) and list(frozen) == list(source)
    assert frozen["k77"] == {"n": 77} and frozen[5.0] == "five" and frozen[np.int64(5)] == "five" and frozen[(1, "a")] == "pair"
    assert "nothing" not in frozen and [] not in frozen and frozen.get("nothing", 3) == 3 and frozen[None] == "none"
    assert dict(frozen) == frozen.thaw() == source
    number, text = enum.IntEnum("Number", {"FIVE": 5}).FIVE, enum.Enum("Text", {"K": "k3"}, type=str).K
    for key in (number, text, type("Sub", (str,), {})("k3"), 5 + 0j):
        assert frozen[key] == source[key] and key in frozen
    surrogate = "file\udcff.png"
    assert surrogate not in frozen and share({surrogate: 1}, client=client)[surrogate] == 1
    with pytest.raises(KeyError):
        frozen["nothing"]
    dates = {datetime.date(2026, 11, 23): 1}
    assert share(dates, client=client) == dates, "a key that a FrozenDict cannot find: the dict stays a dict"


def test_other_objects(client):
    client.put_object("set", {1, 2})
    lazy = client.get_object("set", lazy=True)
    assert type(lazy) is Frozen and lazy.thaw() == {1, 2}
    with pytest.raises(tensorlend.Error, match="is a tensor"):
        client.put("tensor", np.zeros(100, np.uint8))
        client.get_object("tensor")
    with pytest.raises(tensorlend.Error, match="not an object"):
        client.put("tensor", np.zeros(100))
        client.get_object("tensor")


def test_pickles_are_opened_by_those_who_trust_them(client):
    points = [Point(1, np.arange(1000.0)), {"when": datetime.date(2026, 11, 23)}]
    client.put_object("x", points)
    assert client.get_value("x").metadata == {"object": "list", "items": 2, "pickle": True}
    with pytest.raises(UntrustedPickleError, match=r"would import .*test_objects\.Point.*trust_pickle=True if you trust its publisher"):
        client.get_object("x")
    lazy = client.get_object("x", lazy=True)
    with pytest.raises(UntrustedPickleError, match=r"datetime\.date"):
        lazy[1]
    point, when = client.get_object("x", trust_pickle=True)
    assert when == points[1] and point.x == 1 and (point.values == points[0].values).all()
    # The pickle does not contain its buffer.
    assert not point.values.flags.writeable
    assert share(points, client=client)[0].x == 1


def test_what_msgpack_cannot_nest_is_pickled(client):
    around = [1]
    around.append(around)
    for value in (around, "\ud800"):
        client.put_object("x", {"v": value})
        with pytest.raises(UntrustedPickleError):
            client.get_object("x")
    assert client.get_object("x", trust_pickle=True) == {"v": "\ud800"}


#: The pickle of Python 3.14 has no depth limit, so it stores values that are too deep for a record.
HAS_DEEP_PICKLES = sys.version_info >= (3, 14)


def test_what_can_be_written_can_be_read(client):
    deep = []
    for _ in range(1010):
        deep = [deep]
    for _ in range(20):
        deep = [deep]
        try:
            client.put_object("x", deep)
        except RecursionError:
            # The error of pickle, which the encoder tried next.
            return
        found = client.get_object("x", trust_pickle=HAS_DEEP_PICKLES)
        while found:
            (found,) = found
    if not HAS_DEEP_PICKLES:
        pytest.fail("nothing ended it")


def test_errors_of_unpickling_are_the_objects_own(client):
    client.put_object("x", [Fails()])
    with pytest.raises(ZeroDivisionError):
        client.get_object("x", trust_pickle=True)


def divide():
    return 1 // 0


class Fails:
    def __reduce__(self):
        return divide, ()


def sums(pipe, frozen, index):
    pipe.send((sum(row["id"] for row in frozen), float(frozen[index]["image"].sum()), frozen.name))


@pytest.mark.parametrize("method", METHODS)
def test_other_processes(client, method):
    frozen = share(ROWS, client=client)
    assert len(pickle.dumps(frozen)) < 1000
    context = multiprocessing.get_context(method)
    for passed in (frozen, frozen[10:20]):
        here, there = context.Pipe()
        process = context.Process(target=sums, args=(there, passed, 2), daemon=True)
        process.start()
        assert here.poll(60)
        assert here.recv() == (sum(row["id"] for row in passed), float(passed[2]["image"].sum()), frozen.name)
        process.join(60)


def test_a_forked_child_reads_under_its_parents_lease(client):
    frozen, index = share(ROWS, client=client), share({"a": np.arange(3)}, client=client)
    assert frozen[0]["id"] == 0
    sessions = client.stat()["clients"]

    def work():
        seen = sum(row["id"] for row in frozen), index["a"].tolist(), in_child(lambda: frozen[1]["text"])
        # The object needs no session of its own: the test's session is the first.
        return seen, tensorlend.connect(client.address).stat()["clients"]

    assert in_child(work) == ((4950, [0, 1, 2], "row 1"), sessions + 1)
    assert frozen[1]["id"] == 1


def test_a_forked_child_without_its_parents_lease_takes_its_own(script):
    done = script(
        "import os, resource, tensorlend\nfrom tensorlend import share\n"
        "client = tensorlend.embedded().connect()\nfrozen = share([{'a': 1}], client=client)\nprint(frozen[0])\n"
        "limits = resource.getrlimit(resource.RLIMIT_NOFILE)\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))\n"
        "pid = os.fork()\nresource.setrlimit(resource.RLIMIT_NOFILE, limits)\n"
        "if pid == 0: print(frozen[0], flush=True); os._exit(0)\nassert os.waitpid(pid, 0)[1] == 0"
    )
    assert done.stdout.count("{'a': 1}") == 2, done.stderr


def test_the_memory_ends_with_its_last_reader(client):
    frozen = share(ROWS, client=client)
    image, other = frozen[3]["image"], pickle.loads(pickle.dumps(frozen))
    assert other[4]["id"] == 4
    sent, part = pickle.dumps(frozen), frozen[:50]
    del frozen, other
    gc.collect()
    assert client.list("shared/*"), "a slice keeps it"
    del part
    gc.collect()
    gone(client)
    assert (image == 3).all()
    with pytest.raises(tensorlend.NotFoundError):
        pickle.loads(sent)[0]


def share_and_die(socket):
    frozen = share(ROWS, client=tensorlend.connect(socket))
    assert frozen[0]["id"] == 0
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_leaves_nothing_frozen(broker, client):
    process = multiprocessing.get_context("spawn").Process(target=share_and_die, args=(broker.address,), daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    gone(client)


def test_a_name_that_was_overwritten(client):
    client.put_object("x", [1])
    lazy = client.get_object("x", lazy=True)
    sent = pickle.dumps(lazy)
    client.put_object("x", [2])
    assert lazy[0] == pickle.loads(sent)[0] == 1, "this process still has the old value"
    del lazy
    with pytest.raises(tensorlend.NotFoundError, match="overwritten"):
        pickle.loads(sent)[0]


def test_without_a_client(script):
    done = script(
        "import tensorlend, os; from tensorlend import share\n"
        "frozen = share([{'a': 1}])\nprint(frozen[0])\n"
        "pid = os.fork()\nif pid == 0: print(frozen[0], flush=True); os._exit(0)\nassert os.waitpid(pid, 0)[1] == 0"
    )
    assert done.stdout.count("{'a': 1}") == 2


# Records that a hostile publisher writes


def bytes_of(client, value):
    client.put_object("made", value)
    return np.array(client.get_value("made"))


def refused(client, data, trust=False):
    """Reads damaged bytes in every way: only errors of the package and of missing packages may be raised."""
    client.put("damaged", data)
    for read in (
        lambda: client.get_object("damaged"),
        lambda: [client.get_object("damaged", lazy=True)[0] for _ in range(2)],
        lambda: list(client.get_object("damaged", lazy=True)),
        lambda: client.get_object("damaged", lazy=True)["a"],
    ):
        try:
            repr(read())
        except (tensorlend.Error, ImportError, KeyError, IndexError, TypeError):
            pass
        except ValueError as error:
            # numpy decodes invalid Unicode only when an element is read.
            assert "character" in str(error), error


def test_damaged_bytes_are_refused(client):
    arrays = {"a": [np.arange(50), ("x", {1}, np.float32(2), 1 << 80, 1j)], "b": list(range(5000)), "c": [Point(1, np.ones(500))]}
    seed = random.randrange(1 << 32)
    print("seed", seed)
    randomly = random.Random(seed)
    for value in (arrays, [arrays["a"], arrays["b"]], arrays["a"][0]):
        whole = bytes_of(client, value)
        for _ in range(300):
            data = whole.copy()
            for _ in range(randomly.choice([1, 1, 2, 8])):
                at = randomly.randrange(randomly.choice([64, 300, len(data)]) if len(data) > 300 else len(data))
                data[at] = randomly.randrange(256)
            refused(client, data[: randomly.randrange(1, len(data))] if randomly.random() < 0.2 else data)


def with_row(client, row):
    """An object whose only row is these bytes."""
    table = -(-(64 + len(row)) // 8) * 8
    data = -(-(table + 16) // 64) * 64
    head = struct.pack("<8sIIQQQQQQ", b"TLOBJECT", 1, 1, 1, table, table + 16, data, data, 0)
    text = (head + row).ljust(table, b"\0") + struct.pack("<QQ", 64, 64 + len(row))
    client.put("made", np.frombuffer(text.ljust(data, b"\0"), np.uint8))


def nested(depth, code, inner=b"\xc0"):
    """An extension within lists within extensions."""
    for _ in range(depth):
        inner = b"\x91" + inner
        inner = b"\xc9" + struct.pack(">IB", len(inner), code) + inner
    return inner


@pytest.mark.parametrize(
    "row",
    [
        nested(1000, 1), nested(1000, 4, b""), b"\xdd\xff\xff\xff\xff" * 2000, b"\x91" * 100_000, b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
        b"", b"\xc1", b"\xc0\xc0", b"\xd4\x63\x00", b"\x81\x90\xc0", b"\xc7\x00\x08", b"\xc7\x00\x07", b"\xc7\x00\x0b", b"\xc7\x00\x0a",
        # An array of 2**60 elements, one of objects, and one that begins outside the record.
        b"\xc7\x16\x08" + struct.pack("<QBBB", 0, 0, 1, 3) + b"<f8" + struct.pack("<Q", 1 << 60),
        b"\xc7\x15\x08" + struct.pack("<QBBB", 0, 0, 1, 2) + b"|O" + struct.pack("<Q", 1),
        b"\xc7\x16\x08" + struct.pack("<QBBB", 1 << 63, 0, 1, 3) + b"|u1" + struct.pack("<Q", 1),
        # A pickle that announces more buffers than the record has.
        b"\xc7\x04\x0b" + struct.pack("<I", 1 << 31),
        b"\xc7\x11\x0a" + struct.pack("<BQQ", 0, 0, 1 << 40),
        # An array of xarray whose description is no list, and descriptions in descriptions.
        b"\xd4\x0c\xc0", nested(1000, 12),
    ],
    ids=range(22),
)  # fmt: skip
def test_hostile_rows_are_refused(client, row):
    with_row(client, row)
    with pytest.raises(tensorlend.DamagedError, match="which its publisher wrote wrongly"):
        client.get_object("made")


def test_what_lists_claim_to_hold_is_not_allocated(client, script, broker):
    """17,000 lists of 512 items in each other, in 51 KB. With lists of 65,536 items it would be 8 GiB."""
    row = b"\xc0"
    for _ in range(17):
        row = b"\xdc\x02\x00" * 1000 + row
        row = b"\xc9" + struct.pack(">IB", len(row), 1) + row
    with_row(client, b"\x91" + row)
    source = """
import resource, sys, tensorlend
client = tensorlend.connect(sys.argv[1])
client.put_object("x", [1])
client.get_object("x")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    client.get_object("made")
except tensorlend.DamagedError:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    assert int(script(source, broker.address).stdout) < 128


def test_the_row_that_this_test_makes_is_read(client):
    with_row(client, b"\x93\x01\xa1x\xc0")
    assert client.get_object("made") == [[1, "x", None]]


def test_several_items_at_once(client):
    frozen = share(ROWS, client=client)
    ids = lambda rows: [row["id"] for row in rows]  # noqa: E731
    assert ids(frozen.__getitems__([3, 0, -1, 3])) == [3, 0, 99, 3] and frozen.__getitems__([]) == []
    assert ids(frozen.__getitems__(np.array([5, 7]))) == ids(frozen.__getitems__(iter([5, 7]))) == [5, 7]
    assert ids(frozen[10:20].__getitems__([0, -1])) == [10, 19] and ids(frozen[20:10:-3].__getitems__([0, 1, 3])) == [20, 17, 11]
    for part, wrong in ((frozen, 100), (frozen, -101), (frozen[10:20], 10), (frozen[20:10:-3], -5), (frozen[:0], 0), (frozen, 1 << 70)):
        with pytest.raises(IndexError):
            part.__getitems__([0, wrong] if len(part) else [wrong])
    with pytest.raises(TypeError):
        frozen.__getitems__(["one"])
    client.put_object("x", [1, Point(1, np.zeros(1)), Fails()])
    assert client.get_object("x", lazy=True).__getitems__([0, 0]) == [1, 1]
    with pytest.raises(UntrustedPickleError):
        client.get_object("x", lazy=True).__getitems__([0, 1])
    with pytest.raises(ZeroDivisionError):
        client.get_object("x", lazy=True, trust_pickle=True).__getitems__([0, 2])


def test_loaders_make_a_batch_by_one_call(client, monkeypatch):
    from tensorlend.numpy import SharedLoader

    frozen = share([(i, np.full(3, i)) for i in range(20)], client=client)

    def alone(self, index):
        raise AssertionError("an item was fetched alone")

    monkeypatch.setattr(FrozenList, "__getitem__", alone)
    with SharedLoader(frozen, 4, 1, multiprocessing_context="fork") as loader:
        assert [numbers.tolist() for numbers, _ in loader] == np.arange(20).reshape(5, 4).tolist()
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert [len(numbers) for numbers, _ in torch.utils.data.DataLoader(frozen, batch_size=6)] == [6, 6, 6, 2]


# The decoder in Rust, compared with msgpack


class Reference(decode.Decoder):
    """Decodes rows by msgpack."""

    def _unpack(self, data, depth):
        hook = functools.partial(self._met, depth)
        return msgpack.unpackb(data, ext_hook=hook, strict_map_key=False, max_array_len=layout.LIST_MAX)

    def _met(self, depth, code, data):
        if code != layout.Ext.TUPLE:
            return self._extension(depth, code, data)
        if depth == layout.DEPTH_MAX:
            raise ValueError("nested too deep")
        return tuple(self._list(data, depth + 1))


def outcome(decoder, text):
    """The text of the value with all types; None for an error."""
    try:
        value = decoder._unpack(text, 0)
    except Exception:
        return None
    try:
        return repr(value)
    except (RecursionError, ValueError):
        # Too deep for repr, or numpy text that is not Unicode.
        return type(value).__name__


def scribbled(random_, depth=0):
    """A value of every kind that rows have."""
    number = random_.randrange
    plain = [
        lambda: number(-200, 200), lambda: number(-(1 << 64), 1 << 65), lambda: random_.choice([True, False, None]), lambda: random_.random(),
        lambda: random_.choice([float("inf"), float("nan"), -0.0, 1e300]), lambda: "é" * number(40), lambda: "key" + "x" * number(300),
        lambda: bytes(number(300)), lambda: 1j * number(9), lambda: np.float32(number(9)), lambda: np.arange(number(9)), lambda: msgpack.Timestamp(number(1 << 40), 3),
        lambda: {number(9), "a"}, lambda: frozenset([number(9)]),
    ]  # fmt: skip
    nested = [
        lambda: [scribbled(random_, depth + 1) for _ in range(number(5))], lambda: tuple(scribbled(random_, depth + 1) for _ in range(number(5))),
        lambda: {f"k{i}": scribbled(random_, depth + 1) for i in range(number(5))}, lambda: {i: number(9) for i in range(number(30))},
        lambda: {(1, i): i for i in range(number(3))}, lambda: [number(300)] * number(1200),
    ]  # fmt: skip
    return random_.choice(plain if depth > 3 else plain + nested)()


def test_rust_decodes_as_msgpack_does(client):
    """Whole texts, damaged ones and noise: the same value, or an error of both."""
    client.put_object("x", [np.arange(1000)])
    lease = client.get_value("x")
    ours, theirs = (kind(lease, trust_pickle=False, own=False) for kind in (decode.Decoder, Reference))
    randomly = random.Random(20261125)
    values = errors = 0
    for _ in range(3000):
        encoder = Encoder.of_value(scribbled(randomly))
        texts = [bytes(encoder._pieces[0])]
        for _ in range(4):
            damaged = bytearray(texts[0])
            for _ in range(randomly.choice([1, 1, 2, 5])):
                damaged[randomly.randrange(len(damaged))] = randomly.randrange(256)
            texts.append(bytes(damaged[: randomly.randrange(len(damaged) + 1)] if randomly.random() < 0.2 else damaged))
        texts.append(randomly.randbytes(randomly.randrange(12)))
        for text in texts:
            found = outcome(ours, text)
            assert found == outcome(theirs, text), text
            values, errors = values + (found is not None), errors + (found is None)
    assert values > 3000 and errors > 2000


@pytest.mark.parametrize("depth", [1, 511, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("head", [b"\x91", b"\x81\x01", b"\xdc\x00\x01", b"\xde\x00\x01\xa1k"])
@pytest.mark.parametrize("inner", [b"\xc0", b"\x90", b"\x80"])
def test_rust_nests_as_deep_as_msgpack_does(client, head, inner, depth):
    if inner != b"\xc0" and depth in (1023, 1024):
        # At this depth msgpack refuses an empty list or dict; the record's decoder accepts it.
        depth -= 2
    client.put_object("x", [1])
    lease = client.get_value("x")
    ours, theirs = (kind(lease, trust_pickle=False, own=False) for kind in (decode.Decoder, Reference))
    for around in (0, 1, 2, layout.DEPTH_MAX, layout.DEPTH_MAX + 1):
        text = nested(around, layout.Ext.TUPLE, head * depth + inner)
        assert outcome(ours, text) == outcome(theirs, text)


# Frames


def test_arrow(client):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = pa.table({"n": list(range(1000)), "text": [f"row {i}" for i in range(1000)], "l": [[i, None] for i in range(1000)]})
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    values = {"table": table, "batch": table.to_batches()[0], "array": pa.array([1.5, None]), "chunks": pa.chunked_array([[1], [2]]), "d": words}
    client.put_object("x", values)
    found = client.get_object("x")
    assert all(found[name].equals(value) and type(found[name]) is type(value) for name, value in values.items())
    # For values of another publisher, only plain numbers are viewed.
    client.put_object("numbers", pa.table({"n": list(range(1000))}))
    for name, numbers in (("numbers", client.get_object("numbers")["n"]), ("x", found["table"]["n"])):
        assert is_in(client.get_value(name), numbers.chunk(0).buffers()[1].address) == (name == "numbers")
    client.put_object("x", pa.table({"e": pa.array([], pa.string())}))
    assert client.get_object("x").num_rows == 0


def test_frames_of_pandas(client):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = pd.DataFrame({"n": np.arange(1000), "x": np.arange(1000.0), "text": ["a"] * 1000}, index=pd.Index(range(5, 1005), name="i"))
    client.put_object("x", {"frame": frame})
    found = client.get_object("x")["frame"]
    pd.testing.assert_frame_equal(found, frame)
    client.put_object("numbers", frame[["n", "x"]])
    assert is_in(client.get_value("numbers"), address(client.get_object("numbers")["x"].to_numpy()))
    odd = pd.DataFrame({"o": [Fails, 3]})
    client.put_object("x", odd)
    with pytest.raises(UntrustedPickleError):
        client.get_object("x")
    assert client.get_object("x", trust_pickle=True)["o"][1] == 3


def test_what_arrow_would_change_in_a_frame_of_pandas_is_kept(client):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    days, holidays = pd.date_range("2020-01-01", periods=2, freq="D"), pd.offsets.CustomBusinessDay(holidays=["2020-01-02"])
    plain = [
        pd.DataFrame({"a": [1, 2]}, index=days),
        pd.DataFrame({"a": [1, 2]}, index=days.tz_localize("Europe/Berlin")),
        pd.DataFrame({"a": [1, 2]}, index=pd.timedelta_range("1h", periods=2, freq="h")),
        pd.DataFrame({"a": [1]}, index=pd.date_range("2020", periods=1, freq="MS")),
        pd.DataFrame({"a": pd.Categorical(["x", "y"], ordered=True), "b": ["x", None], "c": pd.array([1, None], "Int64")}),
    ]
    pickled = [
        pd.DataFrame({"a": [1, 2]}, index=pd.date_range("2020-01-01", periods=2, freq=holidays)),
        pd.DataFrame([[1, 2]], columns=days),
        pd.DataFrame([[1, 2]], columns=["a", 1]),
        pd.DataFrame({"a": [[1, 2], [3]], "b": [{"x": 1}, {"y": 2}], "c": [(1,), (2,)]}),
        pd.DataFrame({"a": pd.Series([1, None], dtype=object)}),
        pd.DataFrame({"a": [1]}).set_flags(allows_duplicate_labels=False),
    ]
    for frame in plain + pickled:
        client.put_object("x", frame)
        assert client.get_value("x").metadata["pickle"] == any(frame is one for one in pickled)
        found = client.get_object("x", trust_pickle=True)
        pd.testing.assert_frame_equal(found, frame, check_freq=True, check_flags=True)
        assert found.map(type).equals(frame.map(type))
        assert getattr(found.index, "freq", None) == getattr(frame.index, "freq", None)


def test_what_arrow_cannot_hold_of_polars_is_pickled_or_refused(client):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    wide = pl.DataFrame({"a": pl.Series([1 << 100], dtype=pl.Int128)})
    client.put_object("x", wide)
    assert client.get_object("x", trust_pickle=True).equals(wide)
    # polars exports the addresses of objects, which are meaningless in other processes.
    frame = pl.DataFrame({"a": pl.Series([{1}], dtype=pl.Object)})
    with pytest.raises(Exception, match="(?i)object"):
        client.put_object("y", frame)
    assert "y" not in client


def test_the_name_of_an_object_is_no_tensor(client):
    client.put_object("x", {"a": 1})
    for call in [client.get, client.__getitem__, lambda name: client.get(name, default=None), lambda name: client.get(name, mode="cow")]:
        with pytest.raises(tensorlend.DTypeError, match='"x" holds an object, not a tensor: use get_object'):
            call("x")
    with pytest.raises(tensorlend.DTypeError, match="use get_object"):
        client.get_into("x", bytearray(client.info("x").nbytes))
    client.put_dataset("d", {"a": 1})
    with pytest.raises(tensorlend.ArgumentError, match="'d' holds a dataset, not an object: use get_dataset"):
        client.get_object("d")
    # Its bytes are a value, and a lease on them can be sent.
    value = client.get_value("x")
    assert bytes(value)[:8] == b"TLOBJECT" and pickle.loads(pickle.dumps(value)).version == value.version
    client.put("bytes", np.zeros(1000, np.uint8), metadata={"object": "value"})
    assert client.get("bytes").nbytes == 1000


def test_frames_of_polars(client):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = pl.DataFrame({"n": range(1000), "text": [f"row {i}" for i in range(1000)]})
    client.put_object("x", [frame, frame["text"]])
    found, series = client.get_object("x")
    assert found.equals(frame) and series.equals(frame["text"])


@pytest.mark.parametrize("kind", [dict.fromkeys, lambda keys: [dict.fromkeys(keys)], set, frozenset, lambda keys: [set(keys)]])
def test_keys_that_collide_are_refused(client, kind):
    """Python hashes an integer modulo 2^61 - 1, so a publisher can choose many with the same hash."""
    keys = [5 + number * (2**61 - 1) for number in range(65)]
    client.put_object("few", kind(keys[:64]))
    assert client.get_object("few") == kind(keys[:64])
    client.put_object("many", kind(keys))
    with pytest.raises(tensorlend.DamagedError, match="same hash"):
        client.get_object("many")


def test_damaged_arrow_data_are_refused(client):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    whole = bytes_of(client, [pa.table({"n": list(range(50)), "text": [f"row {i}" for i in range(50)]})])
    seed = random.randrange(1 << 32)
    print("seed", seed)
    randomly = random.Random(seed)
    for _ in range(300):
        data = whole.copy()
        for _ in range(randomly.choice([1, 2, 4])):
            data[randomly.randrange(len(data))] = randomly.randrange(256)
        refused(client, data)


def test_arrow_data_with_false_lengths_are_refused(client):
    """Columns of plain numbers are viewed. Their lengths are checked, too."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    count = 1237
    for value in (pa.table({"x": np.arange(count)}), pa.array(np.arange(count)), pa.chunked_array([np.arange(count)])):
        data = bytes_of(client, value)
        whole = data.tobytes()
        places = [at for at in range(len(whole) - 8) if whole[at : at + 8] == struct.pack("<q", count)]
        assert places
        for at in places:
            for length in (count + 1, 100_000_000):
                changed = data.copy()
                changed[at : at + 8] = np.frombuffer(struct.pack("<q", length), np.uint8)
                client.put("false", changed)
                with contextlib.suppress(tensorlend.Error):
                    found = client.get_object("false")
                    assert len(found) <= count, (at, length)


def test_arrow_data_without_rows(client, monkeypatch):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("pandas", reason="pandas is not installed")
    from tensorlend._objects import arrow

    schema = pa.schema([("x", pa.list_(pa.int64())), ("y", pa.int64())])

    def write(sink, table):
        with pa.ipc.new_stream(sink, schema):
            pass

    for frame in (arrow.Frame.PANDAS, arrow.Frame.TABLE, arrow.Frame.BATCH, arrow.Frame.ARRAY, arrow.Frame.CHUNKED):
        with monkeypatch.context() as patched:
            patched.setattr(arrow, "_table_of", lambda value, frame=frame: (frame, schema.empty_table()))
            patched.setattr(arrow, "_write", write)
            client.put_object("empty", object())
        assert len(client.get_object("empty")) == 0


def test_compressed_arrow_data_are_refused(client, monkeypatch):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from tensorlend._objects import arrow

    def write(sink, table):
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write(table)

    monkeypatch.setattr(arrow, "_write", write)
    client.put_object("x", pa.table({"n": [0] * 10_000}))
    with pytest.raises(tensorlend.DamagedError, match="compressed"):
        client.get_object("x")


def test_tensors_of_torch(client):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensors = [torch.arange(6).reshape(2, 3), torch.ones(3, dtype=torch.bfloat16), torch.tensor(2.5), torch.zeros(0), torch.arange(6)[::2]]
    client.put_object("x", {"t": tensors})
    found = client.get_object("x")["t"]
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(found, tensors, strict=True))
    first, length = client.get_value("x").torch().data_ptr(), client.info("x").nbytes
    assert all(first <= tensor.data_ptr() < first + length for tensor in found if tensor.numel())
    parameter = torch.nn.Parameter(torch.ones(2))
    client.put_object("x", parameter)
    with pytest.raises(UntrustedPickleError):
        client.get_object("x")
