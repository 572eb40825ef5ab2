"""Objects that log under a context name."""

from . import logging
from .logging import SRLoggingLevel
from .util import api_call, exception_handler, typecheck

__all__ = ["Context", "LogContext", "SRObject"]


class Context:
    """The state of a public object, and the name under which it logs."""

    def __init__(self, context: str) -> None:
        typecheck(context, "context", str)
        self.context = context


class SRObject:
    """The base of clients, datasets and log contexts.

    :param context: the name under which it logs
    """

    def __init__(self, context: str | Context) -> None:
        typecheck(context, "context", (str, Context))
        self._srobject = Context(context) if isinstance(context, str) else context

    @exception_handler
    def log_data(self, level: SRLoggingLevel, data: str) -> None:
        """Logs a line if the log level is at least ``level``."""
        logging.log_data(self._srobject.context, level, data)

    @exception_handler
    def log_warning(self, level: SRLoggingLevel, data: str) -> None:
        """Logs a line as :meth:`log_data` does, marked ``WARNING``."""
        logging.log_warning(self._srobject.context, level, data)

    @exception_handler
    def log_error(self, level: SRLoggingLevel, data: str) -> None:
        """Logs a line as :meth:`log_data` does, marked ``ERROR``."""
        logging.log_error(self._srobject.context, level, data)


class LogContext(SRObject):
    """A name under which a program logs."""

    def __init__(self, context: str) -> None:
        typecheck(context, "context", str)
        super().__init__(context)

    @staticmethod
    def from_pybind(logcontext: Context) -> "LogContext":
        """Returns a log context with the state of ``logcontext``."""
        typecheck(logcontext, "logcontext", Context)
        new = LogContext(logcontext.context)
        new.set_context(logcontext)
        return new

    @exception_handler
    def get_context(self) -> Context:
        """Returns the state of this context."""
        return self._srobject

    @api_call
    def set_context(self, logcontext: Context) -> None:
        """Replaces the state of this context."""
        self._srobject = logcontext
