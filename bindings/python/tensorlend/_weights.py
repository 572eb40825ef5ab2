"""Files of weights in lent memory. The first process of a machine reads a file, and all others map the same memory.

The steps of one file, with loader L, another process P, and daemon D:

1. P leases `weights/HASH` of the file's real path. The value's metadata name the file that its
   loader read: device, inode, size and times. If the file still has the same data, P is done.
2. P opens the file and tries an exclusive `flock` on it, without blocking. The kernel grants it to one process, which is L.
   The others wait for a new value of `weights/HASH`, at most AGAIN seconds, and begin again at 1.
3. L repeats step 1, because an earlier loader may have published and unlocked between steps 1 and
   2.
4. L reads the file into a draft. It checks that no process wrote to the file (by descriptor) or replaced it (by path). If
   a process did, L drops the draft, unlocks the file and begins again at 1.
5. L repeats step 1 and drops its draft if the weights are there. Otherwise it publishes `weights/HASH`, in place of an
   older file's value, whose leases stay valid.
6. L unlocks the file.

Crashes. Only the lock marks L as the loader. The kernel releases it when L ends, even if L is killed. If L is killed
before 5, D frees the draft and one of the others gets the lock within AGAIN seconds. If L is killed between 5 and 6,
the value is published.

Children. The lock belongs to the open file description, which a forked child shares. L unlocks
explicitly, which ends the lock for the child's descriptor too. If L is killed instead, the child
would keep the lock. So a child of `os.fork` closes its copies of the descriptors, and `O_CLOEXEC`
closes them in started programs. Two kinds of children keep the descriptor: a child forked by native
code, and a child forked by another thread immediately after the opening of the file. The limit
below covers them.

Locks that do not work. The lock only saves work, and is not needed for correct results. P reads the
file by itself in two cases, and then there are two loaders:

* The file system refuses the lock. NFS, for example, demands a descriptor that is open for writing
  (EBADF), but the file is open for reading. Local file systems of Linux do not demand this.
* Another process has held the lock for longer than loading can take (`_own_load_s`). That process
  may be suspended, or run a foreign program, because every program that can read a file can lock
  it. Each process adds a random part to its wait. So one of several waiting processes begins first,
  and the others find its value.

Two loaders publish the same bytes. Because of step 5 the first value usually stays. If both pass
step 5 before one of them publishes, the last value stays, and leases on the first value stay valid.
The machine then has the bytes twice until these leases end. A loader of a file that somebody
replaces between steps 4 and 5 locks another inode than a loader of the new file, and can publish
its older bytes last. Step 1 of the next process detects that and loads the new file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorlend import _native, _safetensors
from tensorlend._default import default_client
from tensorlend._errors import ArgumentError, NotFoundError, TimeoutError
from tensorlend._safetensors import LENGTH_BYTES, Entry, HeaderError

if TYPE_CHECKING:
    import numpy.typing as npt

    from tensorlend._types import Mode

#: Format of the metadata.
FORMAT = 1
#: Alignment in bytes of the first tensor, and of tensors that the file does not align.
ALIGNMENT = 64
#: Bytes that are read and hashed at once. They stay in the processor's cache between the two steps.
CHUNK = 1 << 20
#: Seconds between two attempts to become the loader, because the present loader may have been killed.
AGAIN = 0.05
#: Seconds that a loader may take for an empty file, and bytes per second that a slow loader reads.
LOAD_S = 30.0
SLOW_BYTES_PER_S = 64 << 20
#: Minimum age in nanoseconds of a file's last change before the file is read. A second change soon
#: after it could have the same time stamp.
SETTLED_NS = 50_000_000
#: Number of reads after which `load` raises an error, if another process changed the file or the lent value after each of them.
READS_MAX = 5


@dataclass(frozen=True)
class Weights:
    """The leased value of a file."""

    lease: Any
    bytes: npt.NDArray[np.uint8]
    tensors: list[Entry]


def name_of(path: str | os.PathLike[str]) -> str:
    """Returns the name under which a file is lent."""
    return f"weights/{hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:32]}"


#: The files that this process has opened to lock them.
_open_files: set[FileIO] = set()


def _in_child() -> None:
    # Close the inherited descriptors in a forked child, so that the parent's locks end with the parent.
    for file in _open_files:
        file.close()
    _open_files.clear()


os.register_at_fork(after_in_child=_in_child)


def load(path: str | os.PathLike[str], client: _native.Client | None, mode: Mode, timeout: float | None) -> Weights:
    """Returns a file's weights. The first process reads the file, and all other processes lease the
    weights.
    """
    client = client or default_client()
    name, begun, reads, spread = name_of(path), time.monotonic(), 0, random.uniform(1, 1.5)
    while True:
        found = _published(client, name, path, mode)
        if isinstance(found, Weights):
            return found
        with _opened(path) as file:
            waited = time.monotonic() - begun
            if _lock(file) or waited >= _own_load_s(os.fstat(file.fileno()).st_size, timeout) * spread:
                # Count a read even if its value was published, because another client of the namespace may replace that
                # value again and again.
                if reads == READS_MAX:
                    raise ArgumentError(
                        f"{os.fspath(path)!r} changed while it was read, or another client replaced {name!r}, {READS_MAX} times: load it "
                        "when nobody writes to it"
                    )
                if not isinstance(_published(client, name, path, mode), Weights):
                    reads += 1
                    _publish(client, name, path, file)
                continue
        left = AGAIN if timeout is None else min(AGAIN, timeout - waited)
        if left <= 0:
            raise TimeoutError(
                f"timed out after {timeout:g} s waiting for another process that loads {os.fspath(path)!r}: it holds a lock on "
                "the file (see `lslocks`)"
            )
        try:
            client.wait_newer(name, found, timeout=left).release()
        except TimeoutError:
            # Try to become the loader, because the present loader may have been killed.
            continue


def publish(path: str | os.PathLike[str], name: str, client: _native.Client | None) -> _native.Version:
    """Reads a file and publishes it under a name, in place of the name's older weights. Leases on
    the older weights stay valid.

    The value replaces the older value in one atomic step. If the process is killed before this
    step, the older weights stay.
    """
    client = client or default_client()
    for _ in range(READS_MAX):
        with open(path, "rb", buffering=0) as file:
            found = _read_unchanged(client, path, file)
        if found is not None:
            draft, metadata = found
            return client.put(named(name), draft, metadata=metadata)
    raise ArgumentError(f"{os.fspath(path)!r} changed while it was read, {READS_MAX} times: publish it when no process writes to it")


def named(name: str) -> str:
    """Returns the internal name of the value of named weights."""
    return f"weights/named/{name}"


def load_named(name: str, client: _native.Client | None, mode: Mode, timeout: float | None) -> Weights:
    """Leases the weights of a name. If there is a timeout, waits for the weights."""
    client = client or default_client()
    value = named(name)
    lease = client.get_value(value, mode=mode) if timeout is None else client.wait_for(value, timeout, mode=mode)
    weights = _weights_in(lease)
    if weights is not None:
        return weights
    lease.release()
    raise ArgumentError(f"{value!r} holds no weights: publish them with tensorlend.weights.publish, or choose another name")


def _own_load_s(size: int, timeout: float | None) -> float:
    """Returns the seconds after which a process no longer waits for another one, and reads a file of this size by itself.

    The result is at least half of the timeout. If the timeout is shorter than loading can take, the
    process gets an error and reads no copy of its own. Copies of several such processes could
    exceed the machine's memory.
    """
    return max(LOAD_S + size / SLOW_BYTES_PER_S, (timeout or 0) / 2)


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[FileIO]:
    """Opens a file. At the end, unlocks and closes the file. The unlock also works if children have
    the descriptor.
    """
    with open(path, "rb", buffering=0) as file:
        _open_files.add(file)
        try:
            yield file
        finally:
            _open_files.discard(file)
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)


def _lock(file: FileIO) -> bool:
    """Returns whether this process may load the file. It may if it has the lock, or the file system
    has no such locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _published(
    client: _native.Client, name: str, path: str | os.PathLike[str], mode: Mode
) -> Weights | _native.Version | None:
    """Returns the published weights if they are those of the present file. Otherwise returns the version of the older
    value, if there is one.
    """
    stat = os.stat(path)
    try:
        lease = client.get_value(name, mode=mode)
    except NotFoundError:
        return None
    weights = _weights_in(lease) if _is_of(lease, stat) else None
    if weights is not None:
        return weights
    version = lease.version
    lease.release()
    return version


def _is_of(lease: Any, stat: os.stat_result) -> bool:
    """Returns whether a lease's metadata identify this file. The metadata are untrusted, because
    any client may have published them.
    """
    try:
        metadata = json.loads(lease.metadata_bytes)
    except (ValueError, RecursionError):
        return False
    return isinstance(metadata, dict) and metadata.get("format") == FORMAT and metadata.get("file") == _identity(stat)


def _identity(stat: os.stat_result) -> list[int]:
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _weights_in(lease: Any) -> Weights | None:
    """Returns the tensors of a lent file; None if the value is not such a file. Any client may have
    published the value, so everything is checked.
    """
    if not isinstance(lease, _native.Lease):
        return None
    array: npt.NDArray[Any] = lease.numpy()
    if array.dtype != np.uint8 or array.ndim != 1:
        return None
    try:
        length = _safetensors.header_bytes(array[:LENGTH_BYTES].tobytes(), array.size)
        entries = _safetensors.parse_placed(array[LENGTH_BYTES : LENGTH_BYTES + length].tobytes(), array.size)
    except HeaderError:
        return None
    return Weights(lease, array, entries)


def _publish(client: _native.Client, name: str, path: str | os.PathLike[str], file: FileIO) -> None:
    """Reads an open file and publishes it, unless the file changed or another process has published it."""
    found = _read_unchanged(client, path, file)
    if found is None:
        return
    draft, metadata = found
    if isinstance(_published(client, name, path, "read"), Weights):
        draft.drop()
        return
    client.put(name, draft, metadata=metadata)


def _read_unchanged(
    client: _native.Client, path: str | os.PathLike[str], file: FileIO
) -> tuple[_native.Draft, dict[str, Any]] | None:
    """Reads an open file. Returns a draft and the metadata of its value; None if another process changed the file."""
    before = os.fstat(file.fileno())
    _let_settle(before)
    try:
        draft, digest = _read(client, file, before.st_size)
    except (HeaderError, EOFError) as error:
        if _identity(os.fstat(file.fileno())) != _identity(before):
            return None
        raise ArgumentError(f"{os.fspath(path)!r} is no valid safetensors file: {error}") from error
    # The first comparison (by descriptor) shows that no process wrote to the file. The second one
    # (by path) shows that no process replaced it.
    if not _identity(os.fstat(file.fileno())) == _identity(before) == _identity(os.stat(path)):
        draft.drop()
        return None
    return draft, {"format": FORMAT, "file": _identity(before), "sha256": digest}


def _let_settle(stat: os.stat_result) -> None:
    left_ns = max(stat.st_mtime_ns, stat.st_ctime_ns) + SETTLED_NS - time.time_ns()
    if 0 < left_ns <= SETTLED_NS:
        time.sleep(left_ns / 1e9)


def _read(client: _native.Client, file: FileIO, size: int) -> tuple[_native.Draft, str]:
    """Reads a file into a draft. Returns the draft, and the hash of the file."""
    digest = hashlib.sha256()

    def read(into: memoryview) -> None:
        at = 0
        while at < len(into):
            count = file.readinto(into[at : at + CHUNK])
            if not count:
                raise EOFError("it became shorter")
            digest.update(into[at : at + count])
            at += count

    prefix = bytearray(min(LENGTH_BYTES, size))
    read(memoryview(prefix))
    header = bytearray(_safetensors.header_bytes(bytes(prefix), size))
    read(memoryview(header))
    entries = _safetensors.parse(bytes(header), size - LENGTH_BYTES - len(header))
    placed, total = _place(entries)
    head = _safetensors.written(placed)
    draft = client.create(total, np.uint8)
    try:
        view = draft.array.data.cast("B")
        view[:LENGTH_BYTES] = len(head).to_bytes(LENGTH_BYTES, "little")
        view[LENGTH_BYTES : LENGTH_BYTES + len(head)] = head
        for entry in placed:
            read(view[entry.begin : entry.end])
        del view
    except BaseException:
        draft.drop()
        raise
    return draft, digest.hexdigest()


def _place(entries: list[Entry]) -> tuple[list[Entry], int]:
    """Returns the tensors with their offsets in the lent memory, and the memory's length. Each tensor is aligned to the
    size of its elements.
    """
    # The header contains the offsets. So compute its length with the longest possible numbers.
    longest = [Entry(e.name, e.dtype, e.shape, 1 << 62, 1 << 62) for e in entries]
    at = _up(LENGTH_BYTES + len(_safetensors.written(longest)), ALIGNMENT)
    placed = []
    for entry in entries:
        if at % entry.itemsize:
            at = _up(at, ALIGNMENT)
        nbytes = entry.end - entry.begin
        placed.append(Entry(entry.name, entry.dtype, entry.shape, at, at + nbytes))
        at += nbytes
    return placed, at


def _up(value: int, to: int) -> int:
    return -(-value // to) * to
