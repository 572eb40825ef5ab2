"""The exceptions of this package.

``RedisConnectionError`` says that no broker could be reached. Everything that goes wrong afterwards is a
``RedisReplyError`` or one of its subclasses. Arguments of the wrong type raise ``TypeError``, arguments that cannot be
``ValueError``.
"""

from os import environ

__all__ = [
    "RedisBadAllocError",
    "RedisConnectionError",
    "RedisDatabaseError",
    "RedisInternalError",
    "RedisKeyError",
    "RedisNotImplementedError",
    "RedisReplyError",
    "RedisRuntimeError",
    "RedisTimeoutError",
]


class RedisConnectionError(RuntimeError):
    """No broker could be reached, or ``SSDB`` does not say where one is."""

    def __init__(self, cpp_error: str = "") -> None:
        said = [cpp_error] if cpp_error else []
        if "SSDB" in environ:
            said.append(f"SSDB is {environ['SSDB']!r}")
        super().__init__("; ".join(said))


class RedisReplyError(RuntimeError):
    """A call failed.

    :param cpp_error: what happened
    :param method: the call, as ``Client.get_tensor``
    :param key: the key that it was about; part of ``cpp_error`` already
    """

    def __init__(self, cpp_error: str, method: str = "", key: str = "") -> None:
        super().__init__(f"{method}: {cpp_error}" if method else cpp_error)
        self.method = method
        self.key = key


class RedisRuntimeError(RedisReplyError):
    """What was asked for cannot be done: no such tensor, a field of another type, an address that is not known."""


class RedisBadAllocError(RedisReplyError):
    """There is no memory left, or a limit of the broker is reached."""


class RedisDatabaseError(RedisReplyError):
    """The connection to the broker is lost."""


class RedisInternalError(RedisReplyError):
    """Something that should not be possible."""


class RedisTimeoutError(RedisReplyError):
    """It took too long."""


class RedisKeyError(RedisReplyError):
    """No such dataset, no such tensor in a dataset, or no such option."""


class RedisNotImplementedError(RedisRuntimeError, NotImplementedError):
    """The call exists, but this package cannot do it yet: see the text."""
