"""What stands at a full key: tensors, datasets, tensors of datasets, lists."""

import time
from collections.abc import Callable

import tensorlend

from .prefixes import member_of, value_key
from .snapshot import Array, copied

__all__ = ["key_exists", "poll_key", "poll_name", "tensor_at"]


def key_exists(client: tensorlend.Client, key: str) -> bool:
    """Whether anything stands at this key. A dataset stands at ``{name}.meta``, its tensors at ``{name}.tensor``."""
    if not key:
        return False
    return client.exists(key) or client.length(key) > 0 or _in_dataset(client, key)


def tensor_at(client: tensorlend.Client, key: str) -> Array:
    """The tensor at this key, as the caller's own array; also one of a dataset, as ``{name}.tensor``.

    :raises tensorlend.NotFoundError: if there is none
    """
    try:
        with client.get(key) as lease:
            return copied(lease)
    except tensorlend.NotFoundError:
        member = member_of(key)
        if member is None:
            raise
        dataset, name = member
        try:
            with client.get_dataset(value_key(dataset)) as value:
                return copied(value[name])
        except KeyError:
            pass
        raise


def poll_key(client: tensorlend.Client, key: str, milliseconds: int, tries: int) -> bool:
    """Whether anything stands at this key within so many tries, so many milliseconds apart."""
    return poll_name(client, key, milliseconds, tries, lambda: key_exists(client, key))


def poll_name(
    client: tensorlend.Client, name: str, milliseconds: int, tries: int, is_there: Callable[[], bool]
) -> bool:
    """Whether ``is_there`` within so many tries; between two of them it sleeps until ``name`` holds something."""
    seconds = max(milliseconds, 0) / 1000
    for _ in range(tries):
        if is_there():
            return True
        deadline = time.monotonic() + seconds
        try:
            client.wait_for(name, seconds).release()
        except tensorlend.TimeoutError:
            continue
        if is_there():
            return True
        # Something else has this name: it would end every wait at once.
        time.sleep(max(deadline - time.monotonic(), 0))
    return False


def _in_dataset(client: tensorlend.Client, key: str) -> bool:
    member = member_of(key)
    if member is None:
        return False
    dataset, name = member
    try:
        return name in client.info(value_key(dataset)).members
    except tensorlend.NotFoundError:
        return False
