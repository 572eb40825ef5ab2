"""Aggregation lists of ``tensorlend.smartredis``."""

import pytest
from .numbered import each_raises, numbered, numbers

from tensorlend.smartredis import Client
from tensorlend.smartredis.error import RedisRuntimeError


def test_lists_hold_datasets_in_order(client: Client) -> None:
    for number in range(5):
        client.put_dataset(numbered(f"data {number}", number))
        client.append_to_list("list", numbered(f"data {number}", number))
    assert client.get_list_length("list") == 5
    assert numbers(client.get_datasets_from_list("list")) == [0, 1, 2, 3, 4]
    ranges = {
        (0, 0): [0],
        (1, 3): [1, 2, 3],
        (-2, -1): [3, 4],
        (-99, 99): [0, 1, 2, 3, 4],
        (3, 1): [],
        (5, 9): [],
        (0, -6): [],
    }
    for (start, end), expected in ranges.items():
        assert numbers(client.get_dataset_list_range("list", start, end)) == expected
    client.copy_list("list", "copy")
    client.rename_list("list", "renamed")
    assert [client.get_list_length(name) for name in ("list", "copy", "renamed")] == [0, 5, 5]
    client.append_to_list("copy", numbered("data 0", 0))
    client.rename_list("copy", "renamed")
    assert client.get_list_length("renamed") == 6
    client.delete_list("renamed")
    client.delete_list("renamed")
    assert client.get_datasets_from_list("renamed") == []
    assert client.dataset_exists("data 0")


def test_a_list_shows_its_datasets_as_they_are_now(client: Client) -> None:
    for number in range(3):
        client.put_dataset(numbered(f"data {number}", number))
        client.append_to_list("list", numbered(f"data {number}", number))
    client.put_dataset(numbered("data 1", 10))
    client.delete_dataset("data 2")
    first, second, third = client.get_datasets_from_list("list")
    assert numbers([first, second]) == [0, 10]
    assert (third.get_name(), third.get_tensor_names(), third.get_metadata_field_names()) == ("data 2", [], [])


@pytest.mark.parametrize(
    ("poll", "true_for"),
    [("poll_list_length", [2]), ("poll_list_length_gte", [0, 1, 2]), ("poll_list_length_lte", [2, 3, 4])],
)
def test_list_lengths_are_polled(client: Client, poll: str, true_for: list[int]) -> None:
    for number in range(2):
        client.append_to_list("list", numbered("data", number))
    polled = getattr(client, poll)
    assert [length for length in range(5) if polled("list", length, 1, 2)] == true_for
    assert not polled("list", 2, 1, 0)
    with pytest.raises(ValueError, match="-1"):
        polled("list", -1, 1, 2)


def test_lists_that_cannot_be(client: Client) -> None:
    each_raises(
        RedisRuntimeError,
        [lambda: client.copy_list("absent", "b"), lambda: client.rename_list("absent", "b")],
        match="absent",
    )
    each_raises(
        ValueError,
        [
            lambda: client.get_datasets_from_list(""),
            lambda: client.copy_list("", "b"),
            lambda: client.rename_list("a", ""),
        ],
    )


def test_a_list_of_more_datasets_than_a_client_can_lease(client: Client) -> None:
    client.put_dataset(numbered("data", 1))
    for _ in range(4200):
        client.append_to_list("long", numbered("data", 1))
    datasets = client.get_datasets_from_list("long")
    assert len(datasets) == 4200 and numbers(datasets[-1:]) == [1]
