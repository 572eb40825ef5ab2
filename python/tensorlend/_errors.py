"""The exceptions. Each is the built-in one that fits as well, so that programs may catch either."""

import builtins
import enum


class Error(Exception):
    """Every error of this package. Each says what happened, to what, and what can be done."""


class ArgumentError(Error, ValueError):
    """An argument that cannot be: a name, a shape, metadata above 64 KiB, a buffer of another length."""


class DTypeError(Error, TypeError):
    """Elements that cannot be lent: objects, structures, text, another byte order."""


class NotFoundError(Error, KeyError):
    """There is no such name, stream or list."""

    def __str__(self) -> str:
        # KeyError shows its argument quoted.
        return Exception.__str__(self)


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001
    """What was waited for did not come in time."""


class DisconnectedError(Error, ConnectionError):
    """No daemon answers, or not any more."""


class RemoteError(Error, ConnectionError):
    """A name of another machine cannot be had: its node cannot be reached or refuses, or the gateway here does not answer."""


class LimitKind(enum.StrEnum):
    """The limit that was reached: `LimitError.kind`. Others may be added."""

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
    """A limit is reached: of the daemon's configuration, of this client, or the machine's memory. `kind` says which."""

    #: The limit, to decide by; None where no daemon and no client has refused.
    kind: LimitKind | None

    def __init__(self, message: str = "", kind: str | None = None) -> None:
        super().__init__(message)
        self.kind = None if kind is None else LimitKind(kind)


class PermissionError(Error, builtins.PermissionError):  # noqa: A001
    """This user may not join the namespace, or not write there."""


class DeviceError(Error, RuntimeError):
    """Memory of a device cannot be had or used: no driver, no such device, none lent of it, or what the driver says."""


class StreamFullError(Error):
    """The stream is full, and its policy is to fail."""


class StreamEndedError(Error):
    """The stream has ended, and every message was taken."""
