"""Ends the messages of `_transit` that no process can receive any more.

The messages of a program have names in one folder, `transit/PROGRAM`. Each process of the program publishes one ephemeral name, its
*presence*, in the folder `transit-present/PROGRAM` before it publishes its first message. The daemon deletes the presence when the
process's session ends, also after a kill. A process that has neither sent nor received a message, and has not called `install`, has no
presence. So a message can be deleted if its program has no presence, its sender has ended, and the process that started the sender has
ended or, if that is another program, has no presence:

* When the first process of a program ends in order, it has joined its children. If no other presence is left, it deletes the messages.
* After a kill, the next process that uses the daemon for messages deletes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import weakref
from multiprocessing import process, util
from typing import Any

import numpy as np

from tensorlend._errors import Error

_joined: weakref.WeakSet[Any] = weakref.WeakSet()
_token = secrets.token_hex(6)
_is_forked = False

#: The names of messages and presences. A program may have other names in these folders.
_MESSAGE = re.compile(r"transit/(?P<program>[0-9a-f]{16})/(?P<place>\d+)-(?P<pid>\d+)-(?P<parent>\d+)(?P<kind>[cp])/[0-9a-f]{12}/")
_PRESENCE = re.compile(r"transit-present/(?P<program>[0-9a-f]{16})/(?P<place>\d+)-(?P<pid>\d+)/(?P<token>[0-9a-f]{12})")


def _program() -> str:
    """Returns the name of this program. Processes that multiprocessing or a program under `tensorlend.run` starts have the same
    name. Not computed at the import: a forkserver may import this module before its children get the key."""
    secret = os.environ.get("TENSORLEND_RUN", "").encode() or bytes(process.current_process().authkey)
    return hashlib.sha256(secret).hexdigest()[:16]


def _forget_parent() -> None:
    global _joined, _token, _is_forked
    _joined, _token, _is_forked = weakref.WeakSet(), secrets.token_hex(6), True


os.register_at_fork(after_in_child=_forget_parent)


def _place() -> int:
    """Returns the number of this process's PID namespace. Numbers of processes have a meaning only within one."""
    return os.stat("/proc/self/ns/pid").st_ino


def _is_alive(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _parent() -> str:
    """Returns the number of the process that started this one, with `c` for a child of multiprocessing or a fork, whose parent
    usually reads its messages, and with `p` for a program."""
    if parent := process.parent_process():
        return f"{parent.pid}c"
    return f"{os.getppid()}{'c' if _is_forked else 'p'}"


def join(client: Any) -> None:
    """Publishes the presence of this process, the first time, and deletes the messages of programs that have ended. Raises Error if
    the presence cannot be published.
    """
    if client in _joined:
        return
    client.put(f"transit-present/{_program()}/{_place()}-{os.getpid()}/{_token}", np.zeros(0, np.uint8), ephemeral=True)
    if not _joined and process.parent_process() is None:
        # After multiprocessing has joined the children and the threads of queues, which have the priority -5.
        util.Finalize(None, _leave, args=(os.getpid(),), exitpriority=-100)
    _joined.add(client)
    _delete_messages_without_receivers(client)


def try_join(client: Any) -> None:
    """Joins as `join` does, if it can. The next message tries again. Without a presence, this process lends nothing, and messages
    for it may end with the other processes of the program.
    """
    with contextlib.suppress(Error):
        join(client)


def prefix() -> str:
    """Returns a prefix for the names of this process's messages."""
    return f"transit/{_program()}/{_place()}-{os.getpid()}-{_parent()}/{secrets.token_hex(6)}"


def _delete_messages_without_receivers(client: Any, leaving: str = "") -> None:
    """Deletes the messages that no process can receive. Does not count the presence of the process with the token `leaving`, nor
    that process as a living sender."""
    messages = [found for name in client.names("transit/*") if (found := _MESSAGE.match(name))]
    # List the presences after the messages, because a process publishes its presence before its messages.
    presences = [found for name in client.names("transit-present/*") if (found := _PRESENCE.match(name))]
    here, me = str(_place()), str(os.getpid()) if leaving else ""
    # The daemon may not have noticed the end of a process yet.
    presences = [it for it in presences if it["token"] != leaving and (it["place"] != here or _is_alive(it["pid"]))]
    programs = {found["program"] for found in presences}
    present = {(found["place"], found["pid"]) for found in presences}

    for found in messages:
        sender, parent = found["pid"], found["parent"]
        if found["program"] in programs or found["place"] != here or (sender != me and _is_alive(sender)):
            continue
        if (parent != me and _is_alive(parent)) if found["kind"] == "c" else (here, parent) in present:
            continue
        try:
            # The daemon deletes ephemeral names itself.
            if not client.info(found.string).ephemeral:
                client.delete(found.string)
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
