"""The exceptions of this package. Each exception also derives from the matching built-in exception,
so that programs may catch either.
"""

import builtins
import enum
import errno as _errno
import pickle as _pickle


class Error(Exception):
    """The base of all errors of this package. Each text states the event, the object and the remedy."""

    #: The stable code of this kind of error, such as "TL-0301". It is the same in every language.
    #: The page on errors lists the codes.
    code: str = ""


class ArgumentError(Error, ValueError):
    """An argument is invalid.

    Examples are an invalid name or shape, metadata above 64 KiB, and a buffer of another length.
    """

    code = "TL-0406"


class UntrustedPickleError(ArgumentError, _pickle.UnpicklingError):
    """An object contains a pickle, and its reader did not pass trust_pickle=True. The text names the imports of the pickle."""


class DTypeError(Error, TypeError):
    """The elements cannot be lent, such as objects, structures, text, or another byte order."""

    code = "TL-0308"


class NotFoundError(Error, KeyError):
    """There is no such name, stream or list."""

    code = "TL-0301"

    def __str__(self) -> str:
        # KeyError would show its argument in quotes.
        return Exception.__str__(self)


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001
    """The timeout passed before the call completed."""

    code = "TL-0307"


class DisconnectedError(Error, ConnectionError):
    """No daemon responds, or the daemon has disconnected this client."""

    code = "TL-0102"


class RemoteError(Error, ConnectionError):
    """A name of another machine is unavailable.

    Its node is unreachable or refuses, or this machine's gateway does not respond.
    """

    code = "TL-0705"


class LimitKind(enum.StrEnum):
    """The kind of limit that was reached: `LimitError.kind`. Later versions may add members."""

    POOL_BYTES = "pool-bytes"
    """pool.bytes_max: bytes of segments that all users together may have."""
    POOL_SHARE = "pool-share"
    """A user's share of pool.bytes_max."""
    SHEET_BYTES = "sheet-bytes"
    """pool.sheet_bytes_max: bytes of names and descriptors that all users together may have."""
    SHEET_SHARE = "sheet-share"
    """A user's share of pool.sheet_bytes_max."""
    NAMESPACE_BYTES = "namespace-bytes"
    """bytes_max of a namespace: its segments, names and descriptors."""
    USER_BYTES = "user-bytes"
    """uid.bytes_max: a user's segments, names and descriptors."""
    DEVICE_BYTES = "device-bytes"
    """cuda.bytes_max: bytes that are lent of one device."""
    DEVICE_SHARE = "device-share"
    """A user's share of the memory of all devices."""
    NAMESPACE_DEVICE_BYTES = "namespace-device-bytes"
    """device_bytes_max of a namespace."""
    USER_DEVICE_BYTES = "user-device-bytes"
    """uid.device_bytes_max."""
    DESCRIPTORS = "descriptors"
    """Descriptors that the daemon's process may have open (LimitNOFILE of its unit)."""
    DESCRIPTOR_SHARE = "descriptor-share"
    """A user's share of the daemon's descriptors."""
    SESSIONS = "sessions"
    """uid.sessions_max: clients of one user that are connected."""
    NAMES = "names"
    """names_max of a namespace."""
    NAME_SHARE = "name-share"
    """A user's share of a namespace's names."""
    LONG_NAMES = "long-names"
    """Names of a namespace longer than 96 bytes: an eighth of its names_max."""
    CELLS = "cells"
    """Cells of one client, by names_max of its namespace."""
    MEMBERS = "members"
    """members_max of a namespace: its clients, and those that left tensors."""
    MEMBER_SHARE = "member-share"
    """A user's share of a namespace's members."""
    SEGMENTS = "segments"
    """segments_max of a namespace."""
    SEGMENT_SHARE = "segment-share"
    """A user's share of a namespace's segments."""
    STREAMS = "streams"
    """streams_max of a namespace."""
    STREAM_SHARE = "stream-share"
    """A user's share of a namespace's streams."""
    LISTS = "lists"
    """lists_max of a namespace."""
    LIST_SHARE = "list-share"
    """A user's share of a namespace's lists."""
    SUBSCRIBER_SHARE = "subscriber-share"
    """A user's share of a stream's subscribers."""
    SPILL = "spill"
    """The daemon spills nothing: [spill] has no directory."""
    CLIENT_BYTES = "client-bytes"
    """The client's own memory_limit."""
    LEASES = "leases"
    """Leases that one client may hold."""
    CURSORS = "cursors"
    """Subscriptions, callers and servers that one client may have open."""
    OPEN_FILES = "open-files"
    """Files that the client's process may have open (ulimit -n)."""
    MACHINE_MEMORY = "machine-memory"
    """Memory of the machine."""
    DEVICE_MEMORY = "device-memory"
    """Memory of a device, which has none left."""


class LimitError(Error, MemoryError):
    """A limit of the daemon's configuration, of this client or of the machine is reached. `kind` names the limit."""

    code = "TL-0201"

    #: The limit that was reached; None if neither the daemon nor a client refused the request.
    kind: LimitKind | None

    def __init__(self, message: str = "", kind: str | None = None) -> None:
        super().__init__(message)
        self.kind = None if kind is None else LimitKind(kind)


class PermissionError(Error, builtins.PermissionError):  # noqa: A001
    """This user may not join the namespace, or may not write to it."""

    code = "TL-0601"


class DeviceError(Error, RuntimeError):
    """Device memory cannot be allocated or used.

    There is no driver or no such device, the daemon does not lend the device's memory, or the driver reported an error.
    """

    code = "TL-0810"


class StreamFullError(Error):
    """The stream is full, and its policy is to fail."""

    code = "TL-0501"


class StreamEndedError(Error):
    """The stream has ended, and no message is left."""

    code = "TL-0502"


class ClosedError(Error, ValueError):
    """The object was closed, released, published or dropped by a thread of this process."""

    code = "TL-0408"


class ForkedError(Error, RuntimeError):
    """An object of the parent process was used after a fork. Connect, get or create again in the
    child.
    """

    code = "TL-0107"


class ConflictError(Error):
    """Another client that is still connected owns the name, or produces the stream."""

    code = "TL-0503"


class DamagedError(Error, RuntimeError):
    """The record of a value is invalid, because its publisher wrote it wrongly. Other values are
    not affected.
    """

    code = "TL-0306"


class IncompatibleError(Error, RuntimeError):
    """The versions of this package and of the daemon do not match, or the kernel is too old."""

    code = "TL-0902"


class ServiceError(Error, RuntimeError):
    """The server of a request reported an error, or ended before it responded."""

    code = "TL-0504"


class DaemonStartError(Error, RuntimeError):
    """An embedded daemon could not start."""

    code = "TL-0908"


class SystemCallError(Error, OSError):
    """A system call failed. `errno` is the kernel's error."""

    code = "TL-0904"

    def __init__(self, message: str = "", errno: int | None = None) -> None:
        super().__init__(message)
        # Set errno here and pass the text as the only argument, because OSError accepts an errno only together with a
        # strerror.
        self.errno = errno

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.errno), self.__dict__


class OpenFilesError(SystemCallError):
    """This process has its maximum number of open files (`ulimit -n`). `errno` is EMFILE."""

    code = "TL-0206"
    #: The limit, as in `LimitError.kind`.
    kind = LimitKind.OPEN_FILES

    def __init__(self, message: str = "", errno: int | None = _errno.EMFILE) -> None:
        super().__init__(message, errno)
