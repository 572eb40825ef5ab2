"""The time that an engine needs to compute a token of a prompt, measured by its scheduler."""

from __future__ import annotations

import time
from dataclasses import dataclass

#: Part of the latest prompt in the average.
WEIGHT = 0.5


@dataclass
class _Begun:
    at: float
    length: int
    computed: int


class Pace:
    """The average over prompts, which gives later prompts more weight.

    The time of a prompt begins when the scheduler accepts it, and ends when the scheduler knows a token after it. So it includes the
    steps of other requests, as it will for the next prompt.
    """

    def __init__(self, tokens_min: int) -> None:
        """Ignores prompts of which the engine computes fewer tokens than `tokens_min`."""
        self._tokens_min = tokens_min
        self._begun: dict[str, _Begun] = {}
        #: Seconds for a token. None before the first prompt.
        self.token_s: float | None = None

    def begin(self, request: str, length: int, computed: int) -> None:
        """Notes the start of a prompt of this length, of which the engine computes some tokens."""
        if computed >= self._tokens_min:
            self._begun[request] = _Begun(time.monotonic(), length, computed)

    def see(self, request: str, length: int) -> None:
        """Notes the present length of a request. If it has grown, its prompt has been computed."""
        begun = self._begun.get(request)
        if begun is not None and length > begun.length:
            del self._begun[request]
            token_s = (time.monotonic() - begun.at) / begun.computed
            self.token_s = token_s if self.token_s is None else self.token_s + WEIGHT * (token_s - self.token_s)

    def end(self, request: str) -> None:
        """Forgets a request."""
        self._begun.pop(request, None)
