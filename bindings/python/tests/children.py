"""Forked children, and what they say."""

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any


def in_child(work: Callable[[], Any], leave: Callable[[int], None] = os._exit, meanwhile: Callable[[], None] | None = None) -> Any:
    """Runs `work` in a forked child, and `meanwhile` here; returns the child's result, and raises what it raised, as text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            try:
                said = (True, work())
            except BaseException:
                said = (False, traceback.format_exc())
            with open(writer, "wb") as pipe:
                pickle.dump(said, pipe)
            status = 0
        finally:
            leave(status)
    os.close(writer)
    if meanwhile is not None:
        meanwhile()
    with open(reader, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert text, f"the child said nothing, and ended with {status}"
    fine, result = pickle.loads(text)
    assert fine, result
    assert status == 0, f"the child ended with {status}"
    return result
