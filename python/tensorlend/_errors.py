"""The exceptions. Each is the built-in one that fits as well, so that programs may catch either."""

import builtins


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


class LimitError(Error, MemoryError):
    """A limit is reached: of the daemon's configuration, of this client, or the machine's memory."""


class PermissionError(Error, builtins.PermissionError):  # noqa: A001
    """This user may not join the namespace, or not write there."""


class DeviceError(Error, RuntimeError):
    """Memory of a device cannot be had or used: no driver, no such device, none lent of it, or what the driver says."""


class StreamFullError(Error):
    """The stream is full, and its policy is to fail."""


class StreamEndedError(Error):
    """The stream has ended, and every message was taken."""
