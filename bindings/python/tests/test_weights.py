"""Files of weights in lent memory, without torch."""

import errno
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import LONG

import tensorlend
from tensorlend import _safetensors, _weights
from tensorlend._safetensors import HeaderError
from tensorlend.numpy import load_file


def packed(header, data=b"", length=None):
    """A file of this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def saved(path, arrays):
    """Writes arrays as safetensors does, but in this order: the library sorts them by their alignment."""
    names = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "uint8": "U8", "bool": "BOOL", "bfloat16": "BF16"}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in arrays.items():
        header[name] = tensor(names[array.dtype.name], list(array.shape), len(data), len(data) + array.nbytes)
        data += array.tobytes()
    path.write_bytes(packed(header, data))


ARRAYS = {
    "odd": np.arange(3, dtype=np.uint8),
    "misaligned": np.arange(12, dtype=np.float64).reshape(3, 4),
    "scalar": np.array(7, np.int64),
    "empty": np.ones((0, 5), np.float32),
    "flags": np.array([True, False, True]),
    "half": np.arange(5, dtype=np.float16),
    "brain": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
}


def same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape, name
        assert np.array_equal(found[name], array), name
        assert found[name].flags.aligned, name


def test_arrays_are_those_of_the_file(client, tmp_path):
    path = tmp_path / "model.safetensors"
    saved(path, ARRAYS)
    found = load_file(path, client=client)
    same(found, ARRAYS)
    version = client.version(_weights.name_of(path))
    again = load_file(os.path.relpath(path), client=client)
    same(again, ARRAYS)
    assert client.version(_weights.name_of(path)) == version, "it was read once"
    # The mapping is private: a write does not reach the file.
    found["misaligned"] += 1
    same(again, ARRAYS)
    same(load_file(path, client=client, mode="read"), ARRAYS)
    with pytest.raises(ValueError, match="read-only"):
        load_file(path, client=client, mode="read")["odd"][0] = 1
    [info] = [info for info in client.list("weights/*")]
    metadata = client.get(info.name).metadata
    import hashlib

    assert metadata["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_files_of_the_formats_own_library(client, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "model.safetensors"
    arrays = {name: array for name, array in ARRAYS.items() if name != "brain"}
    safetensors.save_file(arrays, path, metadata={"a": "b"})
    expected = safetensors.load_file(path)
    found = load_file(path, client=client)
    same({name: found[name] for name in expected}, expected)
    assert sorted(found) == sorted(expected)


def test_a_link_leads_to_the_same_memory(client, tmp_path):
    path, link = tmp_path / "model.safetensors", tmp_path / "link.safetensors"
    saved(path, ARRAYS)
    link.symlink_to(path)
    load_file(path, client=client)
    load_file(link, client=client)
    assert len(client.list("weights/*")) == 1


@pytest.mark.parametrize("how", ["replace", "overwrite", "same times"])
def test_a_file_that_changed_is_read_again(client, tmp_path, how):
    path = tmp_path / "model.safetensors"
    first, second = ({"x": np.full(1000, value, np.float32)} for value in (1, 2))
    saved(path, first)
    old = load_file(path, client=client)
    before = path.stat()
    if how == "replace":
        other = tmp_path / "other"
        saved(other, second)
        other.replace(path)
    else:
        saved(path, second)
        if how == "same times":
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    same(load_file(path, client=client), second)
    same(old, first)
    assert len(client.list("weights/*")) == 1


def test_a_client_that_replaces_the_value_again_and_again_delays_nobody_for_ever(client, tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    saved(path, ARRAYS)
    name, usual, published = _weights.name_of(path), _weights._publish, []

    def publish(client, name, path, file):
        usual(client, name, path, file)
        published.append(name)
        client.put(name, np.zeros(3), metadata=b"[" * 65_000)

    monkeypatch.setattr(_weights, "_publish", publish)
    with pytest.raises(tensorlend.ArgumentError, match="replaced"):
        load_file(path, client=client)
    assert published == [name] * _weights.READS_MAX
    monkeypatch.undo()
    same(load_file(path, client=client), ARRAYS)


def test_a_file_that_is_written_to_while_it_is_read(client, tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    saved(path, {"x": np.full(1000, 1, np.float32)})
    usual, writes = _weights._read, [3]

    def read(client, file, size):
        draft = usual(client, file, size)
        if writes[0]:
            writes[0] -= 1
            saved(path, {"x": np.full(1000, 5 - writes[0], np.float32)})
        return draft

    monkeypatch.setattr(_weights, "_read", read)
    assert load_file(path, client=client)["x"][0] == 5
    assert writes == [0]
    writes[0] = 1000
    saved(path, {"x": np.full(1000, 9, np.float32)})
    with pytest.raises(tensorlend.ArgumentError, match="changed while it was read"):
        load_file(path, client=client)
    writes[0] = 0
    assert load_file(path, client=client)["x"][0] == 5 - 995
    assert not is_locked(path)
    assert len(client.list("weights/*")) == 1


def is_locked(path):
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# A program that loads the file, and prints its sum and the number of times that it read the file.
LOADS = """
import sys
import tensorlend
from tensorlend import _weights
from tensorlend.numpy import load_file
reads = []
usual = _weights._read
_weights._read = lambda *arguments: reads.append(1) or usual(*arguments)
with tensorlend.connect(sys.argv[1]) as client:
    print("ready", flush=True)
    input()
    found = load_file(sys.argv[2], client=client)
    print(int(found["x"].sum()), len(reads), flush=True)
    input()
"""


def loader(broker, path, source=LOADS):
    process = subprocess.Popen(
        [sys.executable, "-c", source, broker.address, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def tell(process):
    process.stdin.write("\n")
    process.stdin.flush()


def test_one_of_many_processes_reads_the_file(broker, client, tmp_path):
    path = tmp_path / "model.safetensors"
    array = np.arange(1 << 20, dtype=np.int64) % 7
    saved(path, {"x": array})
    processes = [loader(broker, path) for _ in range(8)]
    for process in processes:
        tell(process)
    said = [list(map(int, process.stdout.readline().split())) for process in processes]
    assert [total for total, _ in said] == [int(array.sum())] * 8
    assert sum(reads for _, reads in said) == 1
    for process in processes:
        process.communicate("\n", timeout=LONG)
        assert process.returncode == 0
    # The value outlives the processes that loaded it.
    assert int(load_file(path, client=client)["x"].sum()) == int(array.sum())


# Stops with the lock, before it publishes anything.
STOPS = LOADS.replace(
    "_weights._read = lambda *arguments: reads.append(1) or usual(*arguments)",
    "_weights._read = lambda *arguments: (print('reading', flush=True), input())",
)


def test_a_killed_loader_is_followed_by_another(broker, client, tmp_path):
    path = tmp_path / "model.safetensors"
    saved(path, {"x": np.arange(1000)})
    victim = loader(broker, path, STOPS)
    tell(victim)
    assert victim.stdout.readline() == "reading\n"
    with pytest.raises(tensorlend.TimeoutError, match="another process that loads"):
        load_file(path, client=client, timeout=0.2)
    other = loader(broker, path)
    tell(other)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert other.stdout.readline() == f"{sum(range(1000))} 1\n"
    other.communicate("\n", timeout=LONG)
    assert not is_locked(path)


# A child is forked while the file is locked, and outlives the loader.
FORKS = LOADS.replace(
    "_weights._read = lambda *arguments: reads.append(1) or usual(*arguments)",
    """
import os, signal
def forks(*arguments):
    child = os.fork()
    if child == 0:
        signal.pause()
    print(child, flush=True)
    input()
_weights._read = forks
""",
)


def test_a_forked_child_of_a_killed_loader_has_no_lock(broker, client, tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    saved(path, {"x": np.arange(1000)})
    monkeypatch.setattr(_weights, "LOAD_S", 1e9)
    victim = loader(broker, path, FORKS)
    tell(victim)
    child = int(victim.stdout.readline())
    try:
        assert is_locked(path)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        assert int(load_file(path, client=client, timeout=LONG)["x"].sum()) == sum(range(1000))
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_lock_of_a_foreign_program(client, tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    saved(path, {"x": np.arange(1000)})
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(tensorlend.TimeoutError, match="another process that loads"):
            load_file(path, client=client, timeout=0.2)
        monkeypatch.setattr(_weights, "LOAD_S", 0.1)
        same(load_file(path, client=client), {"x": np.arange(1000)})
        assert is_locked(path)


@pytest.mark.parametrize("error", [errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(client, tmp_path, monkeypatch, error):
    path = tmp_path / "model.safetensors"
    saved(path, {"x": np.arange(1000)})

    def flock(file, operation):
        raise OSError(error, os.strerror(error))

    # Two loaders: the second one begins while the first one reads.
    usual, found = _weights._read, []

    def read(*arguments):
        draft = usual(*arguments)
        if not found:
            found.append(None)
            found.append(load_file(path, client=client))
        return draft

    monkeypatch.setattr(_weights.fcntl, "flock", flock)
    monkeypatch.setattr(_weights, "_read", read)
    first = load_file(path, client=client)
    for arrays in (first, found[1]):
        same(arrays, {"x": np.arange(1000)})
    # The first loader has dropped its own copy. A lease on long metadata counts with its slot.
    [info] = client.list("weights/*")
    assert info.nbytes <= client.leased() < 2 * info.nbytes


def test_threads_of_one_client(client, tmp_path):
    path = tmp_path / "model.safetensors"
    saved(path, {"x": np.arange(100_000)})
    found = []
    threads = [threading.Thread(target=lambda: found.append(load_file(path, client=client))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for arrays in found:
        same(arrays, {"x": np.arange(100_000)})


def pss_bytes(array):
    """The shares of the mappings that an array is in."""
    address, total, inside = array.__array_interface__["data"][0], 0, False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            inside = begin < address + array.nbytes and address < end
        elif inside and first == "Pss:":
            total += int(line.split()[1]) * 1024
    return total


def test_processes_share_the_pages(broker, client, tmp_path):
    path = tmp_path / "model.safetensors"
    array = np.arange(1 << 21, dtype=np.int64)
    saved(path, {"x": array})
    others = [loader(broker, path) for _ in range(3)]
    for other in others:
        tell(other)
        other.stdout.readline()
    mine = load_file(path, client=client)["x"]
    assert int(mine.sum()) == int(array.sum())
    # The daemon is in this process, and maps nothing.
    assert pss_bytes(mine) < array.nbytes / 4 * 1.2
    for other in others:
        other.communicate("\n", timeout=LONG)


def test_what_another_client_published_is_not_believed(client, tmp_path):
    path = tmp_path / "model.safetensors"
    expected = {"x": np.arange(10)}
    saved(path, expected)
    name, stat = _weights.name_of(path), path.stat()
    file = {"format": 1, "file": _weights._identity(stat)}
    for value, metadata in [
        (np.arange(10), file),
        (np.zeros(100, np.uint8), file),
        (np.frombuffer(packed({"x": tensor("I64", [10], 3, 83)}, bytes(200)), np.uint8), file),
        (np.frombuffer(packed({"x": tensor("I64", [1 << 40], 128, 128 + (8 << 40))}, bytes(200)), np.uint8), file),
        (np.zeros(10, np.uint8), b"no json"),
        (np.zeros(10, np.uint8), {"format": 2}),
    ]:
        client.put(name, value, metadata=metadata)
        same(load_file(path, client=client), expected)
        client.delete(name)
    client.put_dataset(name, {"a": np.arange(3)})
    same(load_file(path, client=client), expected)


HOSTILE = {
    "nothing": b"",
    "too short": b"\x01\x00",
    "a length beyond the file": packed(b"{}", length=100),
    "a length of 2^64": packed(b"{}", length=(1 << 64) - 1),
    "no header": packed(b""),
    "no JSON": packed(b"{"),
    "no text": packed(b"\xff\xfe"),
    "no object": packed([1]),
    "nested without end": packed(b"[" * 100_000),
    "a long number": packed(b'{"x":{"dtype":"U8","shape":[' + b"9" * 10_000 + b'],"data_offsets":[0,0]}}'),
    "metadata that are no text": packed({"__metadata__": {"a": 1}}),
    "a name twice": packed(b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"a"),
    "another field": packed({"x": {**tensor("U8", [1], 0, 1), "more": 1}}, b"a"),
    "a field that is missing": packed({"x": {"dtype": "U8", "shape": [1]}}, b"a"),
    "another dtype": packed({"x": tensor("OBJECT", [1], 0, 8)}, bytes(8)),
    "half a byte": packed({"x": tensor("F4", [2], 0, 1)}, b"a"),
    "a negative size": packed({"x": tensor("U8", [-1], 0, 1)}, b"a"),
    "sizes whose product overflows": packed({"x": tensor("U8", [1 << 62, 4], 0, 0)}),
    "true as a size": packed({"x": tensor("U8", [True], 0, 1)}, b"a"),
    "a fraction as a size": packed({"x": tensor("U8", [1.0], 0, 1)}, b"a"),
    "offsets in another order": packed({"x": tensor("U8", [1], 1, 0)}, b"a"),
    "a tensor beyond the file": packed({"x": tensor("U8", [2], 0, 2)}, b"a"),
    "bytes of no tensor": packed({"x": tensor("U8", [1], 0, 1)}, b"ab"),
    "a gap": packed({"x": tensor("U8", [1], 0, 1), "y": tensor("U8", [1], 2, 3)}, b"abc"),
    "an overlap": packed({"x": tensor("U8", [2], 0, 2), "y": tensor("U8", [2], 1, 3)}, b"abc"),
    "another length than its shape": packed({"x": tensor("F32", [2], 0, 4)}, bytes(4)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_refused(client, tmp_path, what):
    path = tmp_path / "model.safetensors"
    path.write_bytes(HOSTILE[what])
    with pytest.raises(tensorlend.ArgumentError, match="no valid safetensors file"):
        load_file(path, client=client)
    assert client.list("weights/*") == []
    saved(path, {"x": np.arange(3)})
    assert load_file(path, client=client)["x"].tolist() == [0, 1, 2]


@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_header_is_read_or_refused(header, size):
    for parse in (_safetensors.parse, _safetensors.parse_placed):
        try:
            entries = parse(header, size)
        except HeaderError:
            continue
        assert all(0 <= entry.begin <= entry.end <= max(size, 8 + len(header)) for entry in entries)


@given(st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["U8", "dtype", "x"]), lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "x"]), inner, max_size=4)
)), st.integers(0, 40))
def test_any_fields_are_read_or_refused(fields, size):
    try:
        entries = _safetensors.parse(json.dumps({"x": fields}).encode(), size)
    except HeaderError:
        return
    assert sum(entry.end - entry.begin for entry in entries) == size


def test_a_missing_file_is_the_systems_error(client, tmp_path):
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "nothing", client=client)
    shutil.rmtree(tmp_path)
