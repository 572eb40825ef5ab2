"""The base of the client's parts."""

import tensorlend

from .connection import Connection
from .prefixes import Prefixes

__all__ = ["Calls"]


class Calls:
    """The base class of a part of the client, whose calls use one connection."""

    @property
    def _connection(self) -> Connection:
        raise NotImplementedError

    @property
    def _client(self) -> tensorlend.Client:
        return self._connection.client

    @property
    def _prefixes(self) -> Prefixes:
        return self._connection.prefixes
