"""Ends the messages of `_transit` that no process can receive any more.

The messages of a program have names in one folder, `transit/PROGRAM`. Each process of the program publishes one ephemeral name, its
*presence*, in the folder `transit-present/PROGRAM` before it publishes its first message. The daemon deletes the presence when the
process's session ends, also after a kill. So the messages of a program without a presence can be deleted:

* When the first process of a program ends in order, it has joined its children. If no other presence is left, it deletes the messages.
* After a kill, the next process that uses the daemon for messages deletes them.

A process that has neither sent nor received a message, and has not called `install`, has no presence.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import weakref
from multiprocessing import process, util
from typing import Any

import numpy as np

from tensorlend._errors import Error

_joined: weakref.WeakSet[Any] = weakref.WeakSet()
_token = secrets.token_hex(6)


def _of_program() -> str:
    secret = os.environ.get("TENSORLEND_RUN", "").encode() or bytes(process.current_process().authkey)
    return hashlib.sha256(secret).hexdigest()[:16]


#: The name of this program. Processes that multiprocessing or a program under `tensorlend.run` starts have the same name.
PROGRAM = _of_program()


def _begin_anew() -> None:
    global _joined, _token
    _joined, _token = weakref.WeakSet(), secrets.token_hex(6)


os.register_at_fork(after_in_child=_begin_anew)


def join(client: Any) -> None:
    """Publishes the presence of this process, the first time, and deletes the messages of programs that have ended. Raises Error if
    the presence cannot be published.
    """
    if client in _joined:
        return
    client.put(f"transit-present/{PROGRAM}/{os.getpid()}/{_token}", np.zeros(0, np.uint8), ephemeral=True)
    if not _joined and process.parent_process() is None:
        # After multiprocessing has joined the children and the threads of queues, which have the priority -5.
        util.Finalize(None, _leave, args=(os.getpid(),), exitpriority=-100)
    _joined.add(client)
    _delete_messages_without_receivers(client)


def prefix() -> str:
    """Returns a prefix for the names of this process's messages."""
    return f"transit/{PROGRAM}/{os.getpid()}-{os.getppid()}/{secrets.token_hex(6)}"


def _delete_messages_without_receivers(client: Any, leaving: str = "") -> None:
    """Deletes the messages of programs without a presence. Does not count the presence of the process with the token `leaving`.

    Spares messages whose sender is a child of a process that is present. That process may be another program that reads them.
    """
    messages = client.list("transit/*")
    # List the presences after the messages, because a process publishes its presence before its messages.
    presences = [info.name.split("/")[1:] for info in client.list("transit-present/*")]
    programs = {program for program, _, token in presences if token != leaving}
    pids = {pid for _, pid, token in presences if token != leaving}
    for info in messages:
        _, program, sender, *_ = info.name.split("/")
        # The daemon deletes ephemeral names itself.
        if info.ephemeral or program in programs or sender.split("-")[-1] in pids:
            continue
        try:
            client.delete(info.name)
        except Error:
            # Another process has deleted it, or this process has no right to delete it.
            continue


def _leave(pid: int) -> None:
    if os.getpid() != pid:
        return
    for client in list(_joined):
        try:
            _delete_messages_without_receivers(client, _token)
        except Error:
            # The daemon has ended, and the messages with it.
            continue
