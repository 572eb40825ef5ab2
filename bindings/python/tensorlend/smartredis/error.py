"""The exceptions of this package.

``RedisConnectionError`` means that no daemon could be reached. Every later failure is a
``RedisReplyError`` or one of its subclasses. Arguments of the wrong type raise ``TypeError``, impossible arguments
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
    """No daemon could be reached, or ``SSDB`` has no address."""

    def __init__(self, cpp_error: str = "") -> None:
        said = [cpp_error] if cpp_error else []
        if "SSDB" in environ:
            said.append(f"SSDB is {environ['SSDB']!r}")
        super().__init__("; ".join(said))


class RedisReplyError(RuntimeError):
    """A call failed.

    :param cpp_error: the failure
    :param method: the call, as ``Client.get_tensor``
    :param key: the key that it was about; part of ``cpp_error`` already
    """

    def __init__(self, cpp_error: str, method: str = "", key: str = "") -> None:
        super().__init__(f"{method}: {cpp_error}" if method else cpp_error)
        self.method = method
        self.key = key


class RedisRuntimeError(RedisReplyError):
    """The request is impossible, for example because of a missing tensor, a field of another type,
    or an unknown address.
    """


class RedisBadAllocError(RedisReplyError):
    """Memory is exhausted, or a limit of the daemon is reached."""


class RedisDatabaseError(RedisReplyError):
    """The connection to the daemon is lost."""


class RedisInternalError(RedisReplyError):
    """An internal error."""


class RedisTimeoutError(RedisReplyError):
    """The response did not arrive within the timeout."""


class RedisKeyError(RedisReplyError):
    """There is no such dataset, no such tensor in a dataset, or no such option."""


class RedisNotImplementedError(RedisRuntimeError, NotImplementedError):
    """This package does not implement the call. The text states the reason."""
