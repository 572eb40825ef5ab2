"""A world for one cell: namespaces of its own, and the account of the memory and the processes in them.

A cell runs as process 1 of a process namespace. `/dev/shm` and `/tmp` are file systems of its own, and its network is a loopback
interface. So each byte, each process and each port belongs to the cell. An unprivileged user can make such a world.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING, IFF_MULTICAST = 0x8914, 0x1, 0x40, 0x1000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
PR_SET_PDEATHSIG = 1
#: The size of /dev/shm where the fault is not a small one.
LARGE = 4 << 30

libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _checked(libc.mount(encoded[0], encoded[1], encoded[2], flags, encoded[3]), f"mount {target}")


def kept_folders(more: Iterable[str | Path]) -> list[str]:
    """The folders below /tmp that the cell's programs need, none inside another."""
    wanted = [*sys.path, sys.prefix, sys.base_prefix, *more, *os.environ.get("PATH", "").split(":")]
    real = {os.path.realpath(path) for path in map(str, wanted) if path and os.path.isdir(path)}
    real |= {str(path) for path in map(os.path.abspath, map(str, wanted)) if os.path.isdir(path)}
    below = sorted(path for path in real if path.startswith("/tmp/"))
    return [path for path in below if not any(path != other and path.startswith(other + "/") for other in below)]


def inside(work: Callable[[], int], shm: int, keep: list[str]) -> int:
    """Runs `work` as process 1 of a world, and returns the pid of a process that ends with it, with its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                # Root of a user namespace may lock no more memory than any other user.
                resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            except (OSError, ValueError):
                pass  # This user has a limit. A driver sees it.
            uid, gid = os.getuid(), os.getgid()
            _checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET), "unshare")
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
            first = os.fork()
            if first == 0:
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                _arrange(shm, keep)
                status = work()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
            status = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        except BaseException as error:
            print(f"no world: {error}", file=sys.stderr, flush=True)
        os._exit(status if 0 <= status < 256 else 71)
    return pid


def _arrange(shm: int, keep: list[str]) -> None:
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", "/dev/shm", "tmpfs", 0, f"size={shm},mode=1777")
    descriptors = {path: os.open(path, os.O_PATH) for path in keep}
    _mount("tmpfs", "/tmp", "tmpfs", 0, "size=4g,mode=1777")
    for path, descriptor in descriptors.items():
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC)
        os.close(descriptor)
    _mount("proc", "/proc", "proc", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        # Multicast, because some systems find their peers by it.
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP | IFF_RUNNING | IFF_MULTICAST))
    os.environ["TMPDIR"] = "/tmp"


def possible() -> str | None:
    """Why this machine gives no world, or None."""
    pid = inside(lambda: 0, 1 << 20, [])
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None if status == 0 else "unprivileged user namespaces are not available"


def used(folder: str) -> int:
    """Bytes in use in the file system at the folder, those of removed files included that a process still has open."""
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def memfds() -> int:
    """Bytes of the memory files that the world's processes have open or mapped."""
    found: dict[tuple[int, int], int] = {}
    mapped: dict[tuple[int, int], int] = {}
    for pid in processes():
        try:
            for entry in os.scandir(f"/proc/{pid}/fd"):
                if os.readlink(entry.path).startswith("/memfd:"):
                    status = os.stat(entry.path)
                    found[status.st_dev, status.st_ino] = status.st_blocks * 512
            key = None
            for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
                parts = line.split()
                if len(parts) > 5 and "-" in parts[0]:
                    major, minor = (int(part, 16) for part in parts[3].split(":"))
                    key = (os.makedev(major, minor), int(parts[4])) if parts[5].startswith("/memfd:") else None
                elif key is not None and parts[0] == "Rss:":
                    mapped[key] = max(mapped.get(key, 0), int(parts[1]) * 1024)
        except OSError:
            continue  # The process has ended.
    return sum(found.values()) + sum(size for key, size in mapped.items() if key not in found)


def processes() -> list[int]:
    """The world's processes, without this one and without those that have ended."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and alive(pid)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def name(pid: int) -> str:
    """The command line of a process, shortened."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return f"process {pid}"
    return " ".join(word.rpartition("/")[2] for word in words[:3]).strip()


def account() -> dict[str, int]:
    """The memory in use: bytes of /dev/shm, of memory files, and of other files."""
    return {"shm": used("/dev/shm"), "memfd": memfds(), "files": used("/tmp")}


def end(pids: Iterable[int]) -> None:
    """Ends processes by their pids."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
