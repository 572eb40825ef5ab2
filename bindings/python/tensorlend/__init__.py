"""Lend tensors between processes on one machine: no serialization, no copy.

>>> import numpy as np, tensorlend
>>> daemon = tensorlend.embedded()              # programs connect to a running daemon: tensorlend.connect()
>>> client = daemon.connect()
>>> _ = client.put("weights", np.arange(6.0).reshape(2, 3), metadata={"epoch": 3})
>>> lease = client.get("weights")               # in any process: no copy, read-only
>>> np.asarray(lease)[1]
array([3., 4., 5.])
>>> lease.metadata["epoch"]
3
>>> with client.create((480, 640, 3), "uint8", name="camera/front") as draft:
...     draft.array[:] = 128                    # written in place, published at the end of the block
>>> client.get("camera/front").shape
(480, 640, 3)
>>> client.close(); daemon.close()
"""

from collections.abc import Mapping as _Mapping

from tensorlend import _faults as _faults
from tensorlend import _native as _native
from tensorlend import _twins as _twins
from tensorlend._errors import (
    ArgumentError,
    ClosedError,
    ConflictError,
    DaemonStartError,
    DamagedError,
    DeviceError,
    DisconnectedError,
    DTypeError,
    Error,
    ForkedError,
    IncompatibleError,
    LimitError,
    LimitKind,
    NotFoundError,
    OpenFilesError,
    PermissionError,  # noqa: A004
    RemoteError,
    ServiceError,
    StreamEndedError,
    StreamFullError,
    SystemCallError,
    TimeoutError,  # noqa: A004
    UntrustedPickleError,
)
from tensorlend._native import (
    Batches,
    Call,
    Caller,
    Client,
    Dataset,
    Device,
    DeviceDraft,
    DeviceLease,
    Draft,
    Embedded,
    Info,
    Lease,
    LegacyExport,
    Message,
    Model,
    Queue,
    QueueItem,
    QueueItems,
    Server,
    Stream,
    Subscription,
    Version,
    __build__,
    __version__,
    connect,
    embedded,
)
from tensorlend._refs import TensorRef
from tensorlend._share import share
from tensorlend.objects import Frozen, FrozenDict, FrozenList

# typeshed declares Mapping as a protocol, which has no `register`.
_Mapping.register(Dataset)  # pyright: ignore[reportAttributeAccessIssue]
_twins.add_to(_native)

__all__ = [
    "ArgumentError",
    "Batches",
    "Call",
    "Caller",
    "Client",
    "ClosedError",
    "ConflictError",
    "DTypeError",
    "DaemonStartError",
    "DamagedError",
    "Dataset",
    "Device",
    "DeviceDraft",
    "DeviceError",
    "DeviceLease",
    "DisconnectedError",
    "Draft",
    "Embedded",
    "Error",
    "ForkedError",
    "Frozen",
    "FrozenDict",
    "FrozenList",
    "IncompatibleError",
    "Info",
    "Lease",
    "LegacyExport",
    "LimitError",
    "LimitKind",
    "Message",
    "Model",
    "NotFoundError",
    "OpenFilesError",
    "PermissionError",
    "Queue",
    "QueueItem",
    "QueueItems",
    "RemoteError",
    "Server",
    "ServiceError",
    "Stream",
    "StreamEndedError",
    "StreamFullError",
    "Subscription",
    "SystemCallError",
    "TensorRef",
    "TimeoutError",
    "UntrustedPickleError",
    "Version",
    "__build__",
    "__version__",
    "connect",
    "embedded",
    "share",
]
