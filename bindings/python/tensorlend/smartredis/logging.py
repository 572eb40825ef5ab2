"""The log. Lines such as ``context@12-30-59:text`` go to standard output, or to the file that
``SR_LOG_FILE`` names.

``SR_LOG_LEVEL`` (quiet, info, debug or developer; default: info) is the highest level that is written. Both variables are
read when the first line is logged.
"""

import enum
import os
import sys
import threading
import time

from .error import RedisRuntimeError
from .util import api_call

__all__ = ["LLDebug", "LLDeveloper", "LLInfo", "LLQuiet", "SRLoggingLevel", "log_data", "log_error", "log_warning"]


class SRLoggingLevel(enum.IntEnum):
    """Log levels. Each level includes the levels before it."""

    LLQuiet = 1
    LLInfo = 2
    LLDebug = 3
    LLDeveloper = 4

    __str__ = enum.Enum.__str__


LLQuiet = SRLoggingLevel.LLQuiet
LLInfo = SRLoggingLevel.LLInfo
LLDebug = SRLoggingLevel.LLDebug
LLDeveloper = SRLoggingLevel.LLDeveloper

_LEVELS = {"": LLInfo, "quiet": LLQuiet, "info": LLInfo, "debug": LLDebug, "developer": LLDeveloper}


class Logger:
    """The target of the process's log, and its level."""

    def __init__(self, path: str, level: SRLoggingLevel) -> None:
        self._path = path
        self._level = level

    @classmethod
    def from_environment(cls) -> "Logger":
        """:raises RedisRuntimeError: if the file cannot be written, or there is no such level"""
        path, level = os.environ.get("SR_LOG_FILE", ""), os.environ.get("SR_LOG_LEVEL", "")
        if level.lower() not in _LEVELS:
            raise RedisRuntimeError(f"SR_LOG_LEVEL is {level!r}; it must be quiet, info, debug or developer")
        logger = cls(path, _LEVELS[level.lower()])
        if path:
            try:
                logger._append("")
            except OSError as e:
                raise RedisRuntimeError(f"SR_LOG_FILE cannot be written: {e}") from e
        return logger

    def write(self, context: str, level: SRLoggingLevel, text: str) -> None:
        if level > self._level:
            return
        line = f"{context}@{time.strftime('%H-%M-%S')}:{text}\n"
        if self._path:
            try:
                self._append(line)
                return
            except OSError as e:
                # A full disk must not stop a simulation, so its log continues on standard output.
                self._path = ""
                sys.stdout.write(f"the log file cannot be written any more, the log goes on here: {e}\n")
        sys.stdout.write(line)
        sys.stdout.flush()

    def _append(self, line: str) -> None:
        # Open the file for each line, because several processes share the file and another process
        # may rotate it.
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(line)


_logger: Logger | None = None
_lock = threading.Lock()


def _write(context: str, level: SRLoggingLevel, text: str) -> None:
    global _logger
    with _lock:
        if _logger is None:
            _logger = Logger.from_environment()
        _logger.write(context, level, text)


@api_call
def log_data(context: str, level: SRLoggingLevel, data: str) -> None:
    """Logs a line.

    :param context: the beginning of the line
    :param level: the least log level at which it is written
    :param data: its text
    :raises RedisRuntimeError: if the configuration of the log is invalid
    """
    _write(context, level, data)


@api_call
def log_warning(context: str, level: SRLoggingLevel, data: str) -> None:
    """Logs a line as :func:`log_data` does, marked ``WARNING``."""
    _write(context, level, f"WARNING: {data}")


@api_call
def log_error(context: str, level: SRLoggingLevel, data: str) -> None:
    """Logs a line as :func:`log_data` does, marked ``ERROR``."""
    _write(context, level, f"ERROR: {data}")
