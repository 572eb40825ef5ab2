"""Options from the environment or from overrides. A program with several databases adds a suffix to the variables."""

import os
import re

from .error import RedisKeyError, RedisRuntimeError
from .util import api_call

__all__ = ["ConfigOptions", "Options"]

_INTEGER = re.compile(r"-?[0-9]+")


class Options:
    """Values of options by name. A value is read from the environment once. Later changes of the
    environment do not affect it.
    """

    def __init__(self, suffix: str = "") -> None:
        self._suffix = suffix
        self._integers: dict[str, int] = {}
        self._strings: dict[str, str] = {}

    def copy(self) -> "Options":
        copied = Options(self._suffix)
        copied._integers.update(self._integers)
        copied._strings.update(self._strings)
        return copied

    def is_configured(self, name: str) -> bool:
        return name in self._integers or name in self._strings or self._variable(name) in os.environ

    def integer(self, name: str, default: int | None = None) -> int:
        """:raises RedisKeyError: if it is not set and has no default
        :raises ValueError: if it is not a number"""
        if name not in self._integers:
            text = self._read(name, default is not None)
            if text and not _INTEGER.fullmatch(text):
                raise ValueError(f"{self._variable(name)} is {text!r}; it must be a whole number")
            # An empty variable counts as unset. Without a default its value is -1, as in SmartRedis.
            value = int(text) if text else (-1 if default is None else default)
            if not -(2**31) <= value < 2**31:
                raise ValueError(f"{self._variable(name)} is {value}; it must fit into 32 bits")
            self._integers[name] = value
        return self._integers[name]

    def string(self, name: str, default: str | None = None) -> str:
        """:raises RedisKeyError: if it is not set and has no default"""
        if name not in self._strings:
            self._strings[name] = self._read(name, default is not None) or default or ""
        return self._strings[name]

    def override_integer(self, name: str, value: int) -> None:
        self._integers[name] = value

    def override_string(self, name: str, value: str) -> None:
        self._strings[name] = value

    def _read(self, name: str, optional: bool) -> str:
        variable = self._variable(name)
        value = os.environ.get(variable)
        if value is None and not optional:
            raise RedisKeyError(f"{variable} is not set in the environment", key=variable)
        return value or ""

    def _variable(self, name: str) -> str:
        if not name:
            raise RedisKeyError("an option needs a name")
        return f"{name}_{self._suffix}" if self._suffix else name


class ConfigOptions:
    """The options of a client: see :meth:`create_from_environment`."""

    def __init__(self) -> None:
        self._options: Options | None = None

    @classmethod
    @api_call
    def create_from_environment(cls, db_suffix: str) -> "ConfigOptions":
        """Returns options that are read from the environment.

        :param db_suffix: with ``"big"``, the option ``SSDB`` is read from ``SSDB_big``; with ``""`` from ``SSDB``
        """
        return cls.from_pybind(Options(db_suffix))

    @staticmethod
    def from_pybind(configoptions: Options) -> "ConfigOptions":
        """Returns the options object with these values."""
        new = ConfigOptions()
        new.set_configoptions(configoptions)
        return new

    @api_call
    def get_data(self) -> Options:
        """Returns the values of these options."""
        return self._source

    @api_call
    def set_configoptions(self, configoptions: Options) -> None:
        """Replaces the values of these options."""
        self._options = configoptions

    @api_call
    def get_integer_option(self, option_name: str) -> int:
        """Returns the value of an integer option.

        :raises RedisKeyError: if it is not set
        :raises ValueError: if it is not a number of 32 bits
        """
        return self._source.integer(option_name)

    @api_call
    def get_string_option(self, option_name: str) -> str:
        """Returns the value of a text option.

        :raises RedisKeyError: if it is not set
        """
        return self._source.string(option_name)

    @api_call
    def is_configured(self, option_name: str) -> bool:
        """Returns whether the option is set or overridden."""
        return self._source.is_configured(option_name)

    @api_call
    def override_integer_option(self, option_name: str, value: int) -> None:
        """Overrides an integer option in these options only."""
        if not -(2**63) <= value < 2**63:
            raise TypeError(f"{value} does not fit into 64 bits")
        self._source.override_integer(option_name, int(value))

    @api_call
    def override_string_option(self, option_name: str, value: str) -> None:
        """Overrides a text option in these options only."""
        self._source.override_string(option_name, value)

    @property
    def _source(self) -> Options:
        if self._options is None:
            raise RedisRuntimeError("these options have no source; make them by ConfigOptions.create_from_environment")
        return self._options
