"""Installs the handler of SIGSEGV again in workers of torch's DataLoader.

A worker installs torch's own signal handler, which does not call the previous handler. So this
module installs this package's handler after torch's handler. It does so in forked children only,
because only they inherit tensors whose memory is not mapped.
"""

import os
import sys
from typing import Any

from tensorlend import _native

_MODULE = "torch.utils.data._utils.signal_handling"
_FUNCTION = "_set_worker_signal_handlers"


def _after_fork() -> None:
    module = sys.modules.get(_MODULE)
    usual = getattr(module, _FUNCTION, None)
    if usual is None or getattr(usual, "is_tensorlends", False):
        return

    def both(*arguments: Any) -> Any:
        result = usual(*arguments)
        _native._watch_faults()
        return result

    both.is_tensorlends = True  # type: ignore[attr-defined]
    setattr(module, _FUNCTION, both)


os.register_at_fork(after_in_child=_after_fork)
