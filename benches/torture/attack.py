"""What a reader can do to the memory that it was handed: write into a value, cut files, write everywhere.

Only mappings and descriptors that this process already has, and the names of their files. Other processes' memory is left alone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

#: Files that shared memory lies in. The others (libraries, caches of fonts) belong to the machine.
SHARED = re.compile(r"^(/memfd:|/dev/shm/|/tmp/)")
GARBAGE = 0xAAAA_AAAA_AAAA_AAAA

libc = ctypes.CDLL(None, use_errno=True)


class Mapping(NamedTuple):
    begin: int
    end: int
    writable: bool
    path: str


def mappings() -> list[Mapping]:
    """The shared mappings of this process."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[1][3] == "s" and SHARED.match(parts[5]):
            begin, _, end = parts[0].partition("-")
            found.append(Mapping(int(begin, 16), int(end, 16), "w" in parts[1], parts[5]))
    return found


def write(value: Any) -> str:
    """Writes into the value that the system handed out, as a careless program does."""
    if value is None:
        return "no value"
    array = np.asarray(value)
    try:
        array[3:] = GARBAGE
        return "written"
    except ValueError as error:
        return f"refused: {error}"


def truncate() -> str:
    """Cuts every shared file that this process has open, has mapped or can name, to no length."""
    cut = refused = 0
    done: set[tuple[int, int]] = set()
    found = mappings()
    paths = {mapping.path for mapping in found}
    targets = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")] + sorted(paths)
    for target in targets:
        try:
            path = os.readlink(target) if target.startswith("/proc") else target
            status = os.stat(target)
        except OSError:
            continue
        key = (status.st_dev, status.st_ino)
        if not (path.startswith(("/memfd:", "/dev/shm/")) or path in paths) or status.st_size == 0 or key in done or not os.path.isfile(target):
            continue
        done.add(key)
        try:
            os.truncate(target, 0)
            cut += 1
        except OSError:
            refused += 1
    return f"{cut} files cut, {refused} refused" if cut + refused else "no shared file"


def scribble() -> str:
    """Makes every shared mapping writable that can be made so, and writes words at random places of it."""
    written = refused = 0
    chance = random.Random(7)
    found = mappings()
    for mapping in found:
        length = mapping.end - mapping.begin
        if not mapping.writable and libc.mprotect(ctypes.c_void_p(mapping.begin), ctypes.c_size_t(length), mmap.PROT_READ | mmap.PROT_WRITE) != 0:
            refused += 1
            continue
        written += 1
        if os.path.exists(mapping.path) and os.stat(mapping.path).st_size < length:
            length = os.stat(mapping.path).st_size
        for _ in range(max(64, length // 4096)):
            at = mapping.begin + chance.randrange(max(1, length // 8)) * 8
            ctypes.c_uint64.from_address(at).value = GARBAGE
    return f"{written} mappings written, {refused} refused" if found else "no shared mapping"
