"""Keys, which are names with the prefixes of an ensemble.

A program of an ensemble writes under the prefix in ``SSKEYOUT`` and reads under one of the prefixes
in ``SSKEYIN``. A tensor's key is ``prefix.name``, a dataset's ``prefix.{name}``. The dataset's
value has the name ``prefix.{name}.meta``.
"""

from .config import Options
from .error import RedisRuntimeError

__all__ = ["Prefixes", "dataset_name", "member_of", "value_key"]

_META = ".meta"


class Prefixes:
    """The prefixes for writes and reads, and the kinds of names to which they apply."""

    def __init__(self, writes: str, sources: list[str]) -> None:
        self._writes = writes
        self._sources = sources
        self._reads = sources[0] if sources else ""
        self.tensors = True
        self.datasets = True
        self.lists = True
        self.models = False

    @classmethod
    def from_options(cls, options: Options) -> "Prefixes":
        sources = options.string("SSKEYIN", "").split(",")
        return cls(options.string("SSKEYOUT", ""), [source for source in sources if source])

    def set_source(self, source: str) -> None:
        """:raises RedisRuntimeError: if it is not one of ``SSKEYIN``"""
        if source not in self._sources:
            known = ", ".join(self._sources) or "none"
            raise RedisRuntimeError(f"{source!r} is not a data source of SSKEYIN, where there are: {known}")
        self._reads = source

    def tensor(self, name: str, *, reads: bool) -> str:
        return self._before(self.tensors, reads) + name

    def dataset(self, name: str, *, reads: bool) -> str:
        return f"{self._before(self.datasets, reads)}{{{name}}}"

    def list(self, name: str, *, reads: bool) -> str:
        return self._before(self.lists, reads) + name

    def model(self, name: str, *, reads: bool) -> str:
        return self._before(self.models, reads) + name

    def _before(self, counts: bool, reads: bool) -> str:
        prefix = self._reads if reads else self._writes
        return f"{prefix}." if counts and prefix else ""


def value_key(dataset_key: str) -> str:
    """Returns the name of the value of a dataset with this key."""
    return dataset_key + _META


def dataset_name(dataset_key: str) -> str:
    """Returns the dataset's name from its key."""
    return dataset_key[dataset_key.index("{") + 1 : dataset_key.rindex("}")]


def member_of(key: str) -> tuple[str, str] | None:
    """Returns the dataset's key and the tensor's name if ``key`` has the form
    ``prefix.{dataset}.tensor``. Otherwise returns None.
    """
    dataset, brace, tensor = key.rpartition("}.")
    return (dataset + "}", tensor) if brace and "{" in dataset and tensor else None
