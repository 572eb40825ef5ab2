"""Tensors of ``tensorlend.smartredis``, and the full keys of everything."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from .numbered import TENSOR_TYPES, each_raises, numbered, numbers

from tensorlend.smartredis import Client, Dataset
from tensorlend.smartredis.error import RedisReplyError, RedisRuntimeError


@pytest.mark.parametrize("dtype", TENSOR_TYPES)
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (1, 1), (0, 3), ()])
def test_a_tensor_comes_back_as_it_was_put(client: Client, dtype: str, shape: tuple[int, ...]) -> None:
    put = np.random.default_rng(1).integers(-100, 100, shape).astype(dtype)
    client.put_tensor("tensor", put)
    got = client.get_tensor("tensor")
    assert (got.dtype.type, got.shape, got.flags.writeable) == (put.dtype.type, shape, True)
    np.testing.assert_array_equal(got, put)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::-1],
        lambda a: a[:, ::-2],
        lambda a: a.T,
        lambda a: a[2:5, 1:3],
        lambda a: np.asfortranarray(a),
        lambda a: np.broadcast_to(a[0], (4, 8)),
    ],
)
def test_strides_do_not_matter(client: Client, view: Callable[[Any], Any]) -> None:
    put = view(np.arange(48, dtype=np.int32).reshape(6, 8))
    client.put_tensor("view", put)
    np.testing.assert_array_equal(client.get_tensor("view"), put)
    dataset = Dataset("views")
    dataset.add_tensor("view", put)
    client.put_dataset(dataset)
    np.testing.assert_array_equal(client.get_dataset("views").get_tensor("view"), put)


@pytest.mark.parametrize("dtype", ["bool", "float16", "uint32", "uint64", "complex64", ">f8", "S3", "O", "M8[s]"])
def test_other_types_are_refused(client: Client, dtype: str) -> None:
    with pytest.raises(TypeError):
        client.put_tensor("refused", np.zeros(2, dtype))
    with pytest.raises(TypeError):
        Dataset("refused").add_tensor("refused", np.zeros(2, dtype))
    assert not client.tensor_exists("refused")


def test_a_mask_is_not_dropped(client: Client) -> None:
    masked = np.ma.MaskedArray([1.0, 2.0], mask=[False, True])
    calls = [lambda: client.put_tensor("refused", masked), lambda: Dataset("refused").add_tensor("refused", masked)]
    each_raises(RedisRuntimeError, calls, match=r"masked.*pass array.filled\(value\)")
    assert not client.tensor_exists("refused")
    client.put_tensor("none masked", np.ma.MaskedArray([1.0, 2.0], mask=False))
    assert client.get_tensor("none masked").tolist() == [1.0, 2.0]


@pytest.mark.parametrize("length", [8, 1 << 20])
def test_what_was_got_is_the_callers_own(client: Client, length: int) -> None:
    client.put_tensor("own", np.zeros(length))
    mine, other = client.get_tensor("own"), client.get_tensor("own")
    mine[:] = 1
    assert not other.any() and not client.get_tensor("own").any()
    client.put_tensor("own", np.full(length, 2.0))
    client.delete_tensor("own")
    del client
    assert (mine == 1).all() and not other.any()


def test_a_program_may_keep_more_arrays_than_a_client_can_lease(client: Client) -> None:
    client.put_tensor("kept", np.arange(1000))
    kept = [client.get_tensor("kept") for _ in range(4200)]
    assert all(array[-1] == 999 for array in kept)


def test_tensors_are_copied_renamed_and_deleted(client: Client) -> None:
    client.put_tensor("a", np.arange(3))
    client.copy_tensor("a", "b")
    client.rename_tensor("a", "c")
    client.rename_tensor("c", "c")
    assert [client.tensor_exists(name) for name in "abc"] == [False, True, True]
    client.delete_tensor("b")
    client.delete_tensor("b")
    assert not client.tensor_exists("b")
    np.testing.assert_array_equal(client.get_tensor("c"), np.arange(3))


def test_a_tensor_that_does_not_exist(client: Client) -> None:
    each_raises(
        RedisRuntimeError,
        [
            lambda: client.get_tensor("absent"),
            lambda: client.copy_tensor("absent", "b"),
            lambda: client.rename_tensor("absent", "b"),
            lambda: client.rename_tensor("absent", "absent"),
        ],
        match="absent",
    )
    assert not client.poll_tensor("absent", 1, 3)
    client.put_dataset(numbered("dataset", 1))
    each_raises(RedisReplyError, [lambda: client.copy_tensor("dataset", "b")], match="dataset")


def test_a_poll_ends_when_the_tensor_comes(client: Client) -> None:
    late = threading.Timer(0.2, lambda: Client().put_tensor("late", np.ones(1)))
    late.start()
    # A poll once an hour would be too late, so the client waits for the event.
    assert client.poll_tensor("late", 3_600_000, 2)
    late.join()


def test_a_poll_takes_its_time(client: Client) -> None:
    client.append_to_list("a list", numbered("d", 1))
    started = time.monotonic()
    assert not client.poll_dataset("absent", 20, 5)
    assert 0.09 < time.monotonic() - started
    assert client.poll_key("a list", 20, 5)
    assert not client.poll_key("absent", 20, 0)


def test_keys_are_those_that_programs_know(client: Client) -> None:
    client.put_tensor("tensor", np.ones(1))
    client.put_dataset(numbered("data", 1))
    client.append_to_list("list", numbered("data", 1))
    there = ["tensor", "{data}.meta", "{data}.values", "list"]
    absent = ["data", "{data}", "{data}.absent", "{absent}.values", "absent", ""]
    assert [client.key_exists(key) for key in there + absent] == [True] * 4 + [False] * 6
    np.testing.assert_array_equal(client.get_tensor("{data}.values"), np.ones(3))
    client.copy_tensor("{data}.values", "out")
    np.testing.assert_array_equal(client.get_tensor("out"), np.ones(3))


def test_an_ensemble_writes_under_one_prefix_and_reads_under_several(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = []
    for number in range(2):
        monkeypatch.setenv("SSKEYOUT", f"member_{number}")
        monkeypatch.setenv("SSKEYIN", "member_0,,member_1")
        member = Client(None, f"member {number}")
        member.put_tensor("tensor", np.full(1, number))
        member.put_dataset(numbered("data", number))
        member.append_to_list("list", numbered("data", number))
        members.append(member)
    for kind in ("tensor", "{data}.meta", "list"):
        assert [client.key_exists(f"{prefix}{kind}") for prefix in ("", "member_0.", "member_1.")] == [
            False,
            True,
            True,
        ]
    reader = members[1]
    assert (reader.get_tensor("tensor")[0], numbers([reader.get_dataset("data")])) == (0, [0])
    reader.set_data_source("member_1")
    assert (reader.get_tensor("tensor")[0], numbers(reader.get_datasets_from_list("list"))) == (1, [1])
    with pytest.raises(RedisRuntimeError, match="member_2"):
        reader.set_data_source("member_2")
    for switch in ("tensor", "dataset", "list"):
        getattr(reader, f"use_{switch}_ensemble_prefix")(False)
    assert not reader.tensor_exists("tensor") and not reader.dataset_exists("data")
    assert reader.get_list_length("list") == 0
    assert reader.tensor_exists("member_0.tensor")
    reader.put_tensor("tensor", np.zeros(1))
    assert client.key_exists("tensor")
