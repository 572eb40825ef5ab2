"""Values at a full key: tensors, datasets, tensors of datasets, lists."""

import time
from collections.abc import Callable

import tensorlend

from .prefixes import member_of, value_key
from .snapshot import Array, copied

__all__ = ["key_exists", "poll_key", "poll_name", "tensor_at"]


def key_exists(client: tensorlend.Client, key: str) -> bool:
    """Returns whether the key has a value. A dataset has the key ``{name}.meta``, and its tensors have the keys
    ``{name}.tensor``.
    """
    if not key:
        return False
    return client.exists(key) or client.length(key) > 0 or _in_dataset(client, key)


def tensor_at(client: tensorlend.Client, key: str) -> Array:
    """Returns a copy of the tensor with this key. ``{name}.tensor`` is a tensor of a dataset.

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
    """Returns whether the key has a value within `tries` polls. The polls are `milliseconds` apart."""
    return poll_name(client, key, milliseconds, tries, lambda: key_exists(client, key))


def poll_name(
    client: tensorlend.Client, name: str, milliseconds: int, tries: int, is_there: Callable[[], bool]
) -> bool:
    """Returns whether ``is_there`` returns true within this number of polls. Between two polls,
    sleeps until ``name`` has a value.
    """
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
        # The name exists, but has another kind of value. A wait for the name would return at once.
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
