"""The identity of a model's blocks. Engines share blocks only if they agree on all of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: Prefix of the names of all blocks.
BLOCKS = "kv"
#: Prefix of the names under which stores report uses and counters.
REPORTS = "kv-reports"
#: Prefix of the names that describe models.
MODELS = "kv-models"
#: Format of blocks and reports. It is part of each key.
FORMAT = 1
#: Number of hexadecimal digits of a tag, and of a key. Names stay below 64 bytes, so that
#: publishing a new name does not wait for the daemon.
_TAG_DIGITS = 12
_KEY_DIGITS = 32


@dataclass(frozen=True)
class Identity:
    """The identity of a model's blocks, which is a part of each block's name.

    Two engines share blocks only if all fields are equal. `more` contains everything else that
    changes the bytes of a block, such as the revision of the weights or the layout of the engine's
    memory. It must be a value that JSON can express.
    """

    model: str
    dtype: str
    block_tokens: int
    more: Mapping[str, Any] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """Returns the fields as values for JSON.

        Returns
        -------
        dict
            The fields by name.
        """
        return {
            "format": FORMAT,
            "model": self.model,
            "dtype": self.dtype,
            "block_tokens": self.block_tokens,
            "more": dict(self.more),
        }

    def tag(self) -> str:
        """Returns the hash of all fields, which is a part of each block's name.

        Returns
        -------
        str
            Hexadecimal digits.
        """
        text = json.dumps(self.described(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:_TAG_DIGITS]

    def keys(self, tokens: Sequence[int], salt: str = "") -> list[str]:
        """Returns the key of each full block of a sequence of tokens.

        A key is a hash of the salt and of all tokens up to the end of the block. So equal keys mean equal prefixes.

        Parameters
        ----------
        tokens : sequence of int
            The tokens, from the beginning of the prompt.
        salt : str, default ""
            Prompts with different salts share no blocks.

        Returns
        -------
        list of str
            The keys; a last block that is not full has none.
        """
        return Prefix(self, salt).grow(tokens)

    def group(self, rank: int | str = 0) -> str:
        """Returns the prefix of the names of one rank's blocks.

        Parameters
        ----------
        rank : int or str, default 0
            The rank of a process, if several processes compute a model together.

        Returns
        -------
        str
            The prefix, without a slash at the end.
        """
        return f"{BLOCKS}/{self.tag()}.{rank}"


class Prefix:
    """The keys of a sequence of tokens that grows, such as a prompt and the tokens generated after it."""

    def __init__(self, identity: Identity, salt: str = "") -> None:
        self._size = identity.block_tokens
        self._digest = hashlib.sha256(f"{FORMAT}\0{salt}".encode()).digest()
        #: Keys of the full blocks so far.
        self.keys: list[str] = []

    def grow(self, tokens: Sequence[int]) -> list[str]:
        """Returns the keys of all full blocks. The tokens must begin with the tokens of the
        previous call.
        """
        begin, end = len(self.keys) * self._size, len(tokens) // self._size * self._size
        if begin < end:
            data = np.asarray(tokens[begin:end], dtype="<i8").tobytes()
            for at in range(0, len(data), self._size * 8):
                self._digest = hashlib.sha256(self._digest + data[at : at + self._size * 8]).digest()
                self.keys.append(self._digest.hex()[:_KEY_DIGITS])
        return self.keys
