"""``tensorlend.smartredis`` over a real broker: what programs written for SmartRedis 0.6.1 lean on."""

import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorlend
from tensorlend.smartredis import (
    Client,
    ConfigOptions,
    Dataset,
    DatasetConverter,
    LLInfo,
    LLQuiet,
    LogContext,
    SRObject,
    log_data,
)
from tensorlend.smartredis.error import (
    RedisConnectionError,
    RedisKeyError,
    RedisNotImplementedError,
    RedisReplyError,
    RedisRuntimeError,
)
from tensorlend.smartredis.snapshot import COPIED_BYTES_MAX
from tensorlend.smartredis.util import Dtypes

SSDB = "127.0.0.1:6379"
TENSOR_TYPES = ["float64", "float32", "int8", "int16", "int32", "int64", "uint8", "uint16"]
SCALAR_TYPES = ["float64", "float32", "int32", "int64", "uint32", "uint64"]


@pytest.fixture(scope="module")
def broker() -> Iterator[tensorlend.Embedded]:
    with tensorlend.embedded() as broker:
        yield broker


@pytest.fixture(autouse=True)
def environment(broker: tensorlend.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSKEYIN", "SSKEYOUT", "SR_CONN_TIMEOUT", "SR_CONN_INTERVAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TENSORLEND_SOCKET", str(broker.address))
    monkeypatch.setenv("SSDB", SSDB)
    monkeypatch.setenv("SR_DB_TYPE", "Standalone")


@pytest.fixture
def client() -> Client:
    client = Client()
    client.flush_db([SSDB])
    return client


@pytest.fixture
def native(broker: tensorlend.Embedded) -> Iterator[tensorlend.Client]:
    with broker.connect() as native:
        yield native


def numbered(name: str, number: int) -> Dataset:
    dataset = Dataset(name)
    dataset.add_tensor("values", np.full(3, number, np.float32))
    dataset.add_meta_scalar("number", number)
    return dataset


def numbers(datasets: list[Dataset]) -> list[int]:
    return [int(dataset.get_meta_scalars("number")[0]) for dataset in datasets]


# Tensors


@pytest.mark.parametrize("dtype", TENSOR_TYPES)
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (1, 1), (0, 3), ()])
def test_a_tensor_comes_back_as_it_was_put(client: Client, dtype: str, shape: tuple[int, ...]) -> None:
    put = np.random.default_rng(1).integers(-100, 100, shape).astype(dtype)
    client.put_tensor("tensor", put)
    got = client.get_tensor("tensor")
    assert (got.dtype, got.shape, got.flags.writeable) == (put.dtype, shape, True)
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


@pytest.mark.parametrize("nbytes", [64, COPIED_BYTES_MAX, COPIED_BYTES_MAX + 8, 4 * COPIED_BYTES_MAX])
def test_what_was_got_is_the_callers_own(client: Client, nbytes: int) -> None:
    client.put_tensor("own", np.zeros(nbytes // 8))
    mine, other = client.get_tensor("own"), client.get_tensor("own")
    mine[:] = 1
    assert not other.any() and not client.get_tensor("own").any()
    client.put_tensor("own", np.full(nbytes // 8, 2.0))
    client.delete_tensor("own")
    del client
    assert (mine == 1).all() and not other.any()


def test_a_program_may_keep_more_arrays_than_a_client_can_lease(client: Client) -> None:
    client.put_tensor("kept", np.arange(COPIED_BYTES_MAX // 8 + 1, dtype=np.float64))
    kept = [client.get_tensor("kept") for _ in range(1100)]
    assert all(array[-1] == COPIED_BYTES_MAX // 8 for array in kept)


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
    for call in (
        lambda: client.get_tensor("absent"),
        lambda: client.copy_tensor("absent", "b"),
        lambda: client.rename_tensor("absent", "b"),
        lambda: client.rename_tensor("absent", "absent"),
    ):
        with pytest.raises(RedisRuntimeError, match="absent"):
            call()
    assert not client.poll_tensor("absent", 1, 3)


def test_a_poll_ends_when_the_tensor_comes(client: Client) -> None:
    late = threading.Timer(0.2, lambda: Client().put_tensor("late", np.ones(1)))
    started = time.monotonic()
    late.start()
    assert client.poll_tensor("late", 5000, 12)
    assert time.monotonic() - started < 5
    late.join()


def test_a_poll_takes_its_time_and_no_longer(client: Client) -> None:
    client.append_to_list("a list", numbered("d", 1))
    started = time.monotonic()
    assert not client.poll_dataset("absent", 20, 5)
    assert 0.09 < time.monotonic() - started < 5
    assert client.poll_key("a list", 20, 5)
    assert not client.poll_key("absent", 20, 0)


# Datasets


def test_a_dataset_comes_back_with_all_its_fields(client: Client) -> None:
    dataset = Dataset("full")
    for dtype in TENSOR_TYPES:
        dataset.add_tensor(f"tensor {dtype}", np.arange(6, dtype=dtype).reshape(2, 3))
    for dtype in SCALAR_TYPES:
        for value in (0, 3):
            dataset.add_meta_scalar(f"scalar {dtype}", np.dtype(dtype).type(value))
    for text in ("one", "", "zwölf\0"):
        dataset.add_meta_string("texts", text)
    client.put_dataset(dataset)
    got = client.get_dataset("full")
    assert got.get_name() == "full"
    assert got.get_tensor_names() == [f"tensor {dtype}" for dtype in TENSOR_TYPES]
    for dtype in TENSOR_TYPES:
        name = f"tensor {dtype}"
        assert (got.get_tensor_type(name), got.get_tensor_dims(name)) == (np.dtype(dtype).type, [2, 3])
        np.testing.assert_array_equal(got.get_tensor(name), dataset.get_tensor(name))
    for dtype in SCALAR_TYPES:
        name = f"scalar {dtype}"
        assert got.get_metadata_field_type(name) == np.dtype(dtype).type
        assert got.get_meta_scalars(name).dtype == dtype and got.get_meta_scalars(name).tolist() == [0, 3]
    assert got.get_meta_strings("texts") == ["one", "", "zwölf\0"]
    assert got.get_metadata_field_type("texts") is str
    assert got.get_metadata_field_names() == dataset.get_metadata_field_names()


def test_scalars_are_exact(client: Client) -> None:
    dataset = Dataset("exact")
    floats = [0.1, -0.0, 5e-324, float("inf"), float("-inf"), float("nan")]
    for value in floats:
        dataset.add_meta_scalar("doubles", value)
        dataset.add_meta_scalar("floats", np.float32(value))
    for number in (2**64 - 1, 2**63):
        dataset.add_meta_scalar("big", np.uint64(number))
    dataset.add_meta_scalar("small", -(2**63))
    client.put_dataset(dataset)
    got = client.get_dataset("exact")
    for name, dtype in (("doubles", "float64"), ("floats", "float32")):
        assert got.get_meta_scalars(name).tobytes() == np.array(floats, dtype).tobytes()
    assert got.get_meta_scalars("big").tolist() == [2**64 - 1, 2**63]
    assert got.get_meta_scalars("small").tolist() == [-(2**63)]


def test_a_dataset_of_fields_only_and_one_with_very_many(client: Client) -> None:
    with pytest.raises(RedisRuntimeError, match="empty"):
        client.put_dataset(Dataset("nothing"))
    few, many = Dataset("few"), Dataset("many")
    few.add_meta_string("text", "alone")
    for number in range(20_000):
        many.add_meta_scalar("numbers", number)
    client.put_dataset(few)
    client.put_dataset(many)
    assert client.get_dataset("few").get_meta_strings("text") == ["alone"]
    got = client.get_dataset("many")
    assert got.get_meta_scalars("numbers").tolist() == list(range(20_000))
    assert got.get_tensor_names() == []


def test_a_dataset_that_was_got_can_be_added_to_and_put_again(client: Client) -> None:
    client.put_dataset(numbered("grows", 1))
    got = client.get_dataset("grows")
    got.add_tensor("large", np.ones(COPIED_BYTES_MAX, np.uint8))
    got.add_meta_scalar("number", 2)
    client.put_dataset(got)
    again = client.get_dataset("grows")
    assert again.get_meta_scalars("number").tolist() == [1, 2]
    assert again.get_tensor_names() == ["values", "large"]
    again.get_tensor("large")[:] = 7
    client.put_dataset(again)
    client.put_dataset(numbered("grows", 3))
    assert (again.get_tensor("large") == 1).all()
    assert client.get_dataset("grows").get_tensor_names() == ["values"]


def test_fields_keep_their_type() -> None:
    dataset = numbered("typed", 1)
    for call in (
        lambda: dataset.add_meta_scalar("number", 1.5),
        lambda: dataset.add_meta_string("number", "text"),
        lambda: dataset.get_meta_strings("number"),
        lambda: dataset.get_meta_scalars("absent"),
        lambda: dataset.add_tensor("values", np.zeros(1)),
        lambda: dataset.add_tensor("", np.zeros(1)),
    ):
        with pytest.raises(RedisRuntimeError):
            call()
    for call in (
        lambda: dataset.get_tensor("absent"),
        lambda: dataset.get_tensor_type("absent"),
        lambda: dataset.get_tensor_dims("absent"),
        lambda: dataset.get_metadata_field_type("absent"),
    ):
        with pytest.raises(RedisKeyError):
            call()
    for value in (True, "text", np.int16(1), np.zeros(2), 1j, None):
        with pytest.raises(TypeError):
            dataset.add_meta_scalar("scalar", value)  # type: ignore[arg-type]


def test_a_dataset_that_does_not_exist(client: Client) -> None:
    for call in (
        lambda: client.get_dataset("absent"),
        lambda: client.copy_dataset("absent", "b"),
        lambda: client.rename_dataset("absent", "b"),
    ):
        with pytest.raises(RedisKeyError, match="absent"):
            call()
    with pytest.raises(RedisRuntimeError, match="absent"):
        client.delete_dataset("absent")


def test_datasets_are_copied_renamed_and_deleted(client: Client) -> None:
    client.put_dataset(numbered("a", 1))
    client.copy_dataset("a", "b")
    client.rename_dataset("a", "c")
    client.rename_dataset("c", "c")
    assert [client.dataset_exists(name) for name in "abc"] == [False, True, True]
    client.delete_dataset("b")
    assert not client.dataset_exists("b")
    assert client.get_dataset("c").get_name() == "c"


def test_readers_see_all_of_a_dataset_or_none(client: Client) -> None:
    client.put_dataset(numbered("whole", 0))
    ends = threading.Event()

    def write() -> None:
        writer, number = Client(), 0
        while not ends.is_set():
            number += 1
            writer.put_dataset(numbered("whole", number))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(300):
            got = client.get_dataset("whole")
            assert (got.get_tensor("values") == got.get_meta_scalars("number")[0]).all()
    finally:
        ends.set()
        thread.join()


# Keys and prefixes


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
        assert [client.key_exists(f"{prefix}{kind}") for prefix in ("", "member_0.", "member_1.")] == [False, True, True]
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


# Lists


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
    for call in (lambda: client.copy_list("absent", "b"), lambda: client.rename_list("absent", "b")):
        with pytest.raises(RedisRuntimeError, match="absent"):
            call()
    for call in (
        lambda: client.get_datasets_from_list(""),
        lambda: client.copy_list("", "b"),
        lambda: client.rename_list("a", ""),
    ):
        with pytest.raises(ValueError):
            call()


def test_a_list_of_more_datasets_than_a_client_can_lease(client: Client) -> None:
    client.put_dataset(numbered("data", 1))
    for _ in range(4200):
        client.append_to_list("long", numbered("data", 1))
    datasets = client.get_datasets_from_list("long")
    assert len(datasets) == 4200 and numbers(datasets[-1:]) == [1]


# Administration


def test_flush_deletes_everything(client: Client, native: tensorlend.Client) -> None:
    client.put_tensor("tensor", np.ones(1))
    client.put_dataset(numbered("data", 1))
    client.append_to_list("list", numbered("data", 1))
    native.stream("stream").close()
    client.config_set("timeout", "7", SSDB)
    client.flush_db([SSDB])
    assert not any(client.key_exists(key) for key in ("tensor", "{data}.meta", "list"))
    assert native.streams() == []
    assert client.config_get("timeout", SSDB) == {"timeout": "7"}


def test_parameters_are_seen_by_all_clients(client: Client) -> None:
    client.config_set("lua-time-limit", "6000", SSDB)
    assert Client().config_get("lua-*", SSDB) == {"lua-time-limit": "6000"}
    assert client.config_get("absent", SSDB) == {}
    for name, value in (("absent", "1"), ("lua-time-limit", "long")):
        with pytest.raises(RedisReplyError, match=name):
            client.config_set(name, value, SSDB)


def test_the_broker_takes_the_part_of_the_node(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.put_tensor("tensor", np.ones(1000))
    (info,) = client.get_db_node_info([SSDB])
    assert info["Server"]["tensorlend_version"] and int(info["Memory"]["used_memory"]) >= 8000
    assert info["Persistence"]["rdb_last_save_time"] == "0"
    assert all(isinstance(value, str) for section in info.values() for value in section.values())
    client.save([SSDB])
    for call in (client.get_db_node_info, client.flush_db, client.save):
        for address in ("elsewhere:6379", "nonsense"):
            with pytest.raises(RedisRuntimeError, match=address):
                call([address])
    assert client.tensor_exists("tensor")
    with pytest.raises(RedisReplyError):
        client.get_db_cluster_info([SSDB])
    monkeypatch.setenv("SR_DB_TYPE", "Clustered")
    assert Client().get_db_cluster_info(["elsewhere:6379"])[0]["cluster_state"] == "ok"


# Connecting


@pytest.mark.parametrize("ssdb", [None, "", "host", ":6379", "host:", "host:port", "host:6379;", "unix://"])
def test_an_address_that_cannot_be(ssdb: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if ssdb is None:
        monkeypatch.delenv("SSDB")
    else:
        monkeypatch.setenv("SSDB", ssdb)
    for make in (Client, lambda: Client(False)):
        with pytest.raises(RedisConnectionError):
            make()


def test_a_unix_address_is_a_brokers_socket(
    broker: tensorlend.Embedded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TENSORLEND_SOCKET")
    monkeypatch.setenv("SSDB", f"unix://{broker.address}")
    assert str(broker.address) in str(Client())
    monkeypatch.setenv("SSDB", f"unix://{tmp_path}/absent")
    monkeypatch.setenv("SR_CONN_TIMEOUT", "1")
    monkeypatch.setenv("SR_CONN_INTERVAL", "100")
    started = time.monotonic()
    with pytest.raises(RedisConnectionError, match="absent"):
        Client()
    assert 0.5 < time.monotonic() - started < 20


def test_constructors_old_and_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSDB")
    Client(False, SSDB, "name")
    assert os.environ["SSDB"] == SSDB
    Client(cluster=True, logger_name="name")
    monkeypatch.delenv("SSDB")
    monkeypatch.setenv("SSDB_second", SSDB)
    Client(ConfigOptions.create_from_environment("second"), "name")
    Client(config_options=ConfigOptions.create_from_environment("second"))
    with pytest.raises(RedisConnectionError):
        Client(None)
    for arguments, keywords in (
        (("text",), {}),
        ((False,), {"absent": 1}),
        ((None,), {"absent": 1}),
        ((), {"address": SSDB}),
        ((None, 5), {}),
    ):
        with pytest.raises(TypeError):
            Client(*arguments, **keywords)


@pytest.mark.parametrize("value", ["0", "-1", "soon", "99999999"])
def test_times_that_cannot_be(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SR_CMD_TIMEOUT", value)
    with pytest.raises(ValueError, match="SR_CMD_TIMEOUT"):
        Client()


def test_options_come_from_the_environment_or_are_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("count_x", "-4")
    monkeypatch.setenv("text_x", "word")
    options = ConfigOptions.create_from_environment("x")
    assert (options.get_integer_option("count"), options.get_string_option("text")) == (-4, "word")
    assert options.is_configured("count") and not options.is_configured("absent")
    with pytest.raises(ValueError):
        options.get_integer_option("text")
    for get in (options.get_integer_option, options.get_string_option):
        with pytest.raises(RedisKeyError, match="absent_x"):
            get("absent")
    options.override_integer_option("count", 5)
    options.override_string_option("absent", "now")
    assert (options.get_integer_option("count"), options.get_string_option("absent")) == (5, "now")
    assert ConfigOptions.create_from_environment("x").get_integer_option("count") == -4
    with pytest.raises(RedisRuntimeError, match="create_from_environment"):
        ConfigOptions().get_string_option("text")


# Models


def test_models_and_scripts_say_that_they_are_not_here(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_bytes(b"model")
    for call in (
        lambda: client.set_model("m", b"model", "TORCH", "CPU"),
        lambda: client.set_model_from_file("m", str(file), "torch"),
        lambda: client.set_model_multigpu("m", b"model", "ONNX", 0, 1),
        lambda: client.get_model("m"),
        lambda: client.run_model("m", ["in"], "out"),
        lambda: client.poll_model("m", 1, 1),
        lambda: client.set_function("f", test_lists_that_cannot_be),
        lambda: client.set_script_from_file("s", str(file)),
        lambda: client.run_script("s", "f", "in", ["out"]),
        lambda: client.get_ai_info([SSDB], "m"),
    ):
        with pytest.raises(RedisNotImplementedError, match="not here yet"):
            call()
    assert not client.model_exists("m")
    for call in (
        lambda: client.set_model("m", b"model", "ABACUS"),
        lambda: client.set_script("s", "text", "TPU"),
        lambda: client.run_model("m", 5),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="num_gpus"):
        client.run_model_multigpu("m", 0, 0, 0)
    with pytest.raises(FileNotFoundError):
        client.set_model_from_file("m", str(tmp_path / "absent"), "TORCH")


# Errors, the log, types


def test_an_error_says_which_call_failed_and_why(client: Client) -> None:
    with pytest.raises(RedisReplyError, match=r"^Client\.get_tensor: .*absent") as caught:
        client.get_tensor("absent")
    assert isinstance(caught.value.__cause__, tensorlend.NotFoundError)
    with pytest.raises(RedisReplyError, match=r"^Client\.rename_list: .*absent"):
        client.rename_list("absent", "b")
    with pytest.raises(RedisReplyError, match=r"^Dataset\.get_tensor: "):
        Dataset("d").get_tensor("absent")


def test_the_log(broker: tensorlend.Embedded, tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = """
        from tensorlend.smartredis import *
        log_data("function", LLQuiet, "quiet")
        log_data("function", LLDebug, "not written")
        for thing in (Client(None, "client"), Client(None, "second"), Dataset("dataset"), LogContext("context")):
            thing.log_warning(LLInfo, "told")
        SRObject("object").log_error(LLInfo, "failed")
    """
    environment = {**os.environ, "SR_LOG_FILE": str(log), "SR_LOG_LEVEL": "info"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment, check=True, timeout=60)
    lines = [re.sub(r"@\d\d-\d\d-\d\d:", ":", line) for line in log.read_text().splitlines()]
    assert lines[0] == "function:quiet"
    assert lines[1].startswith(f"client:SSDB names {SSDB}") and str(broker.address) in lines[1]
    warned = [f"{context}:WARNING: told" for context in ("client", "second", "dataset", "context")]
    assert lines[2:] == [*warned, "object:ERROR: failed"]
    environment["SR_LOG_LEVEL"] = "loud"
    failed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert failed.returncode == 1 and "RedisRuntimeError" in failed.stderr and "loud" in failed.stderr


def test_the_log_refuses_what_it_cannot_write() -> None:
    for call in (
        lambda: log_data("context", 2, "text"),  # type: ignore[arg-type]
        lambda: LogContext("context").log_data(LLInfo, 5),  # type: ignore[arg-type]
        lambda: SRObject(5),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            call()
    assert str(LLQuiet) == "SRLoggingLevel.LLQuiet"


def test_names_of_types() -> None:
    for dtype in TENSOR_TYPES:
        assert Dtypes.from_string(Dtypes.tensor_from_numpy(np.zeros(1, dtype))) == np.dtype(dtype).type
    for dtype in SCALAR_TYPES:
        assert Dtypes.from_string(Dtypes.metadata_from_numpy(np.zeros(1, dtype))) == np.dtype(dtype).type
    with pytest.raises(TypeError):
        Dtypes.from_string("HALF")


# xarray


def test_datasets_become_arrays_of_xarray(client: Client) -> None:
    xarray = pytest.importorskip("xarray")
    wind = np.random.default_rng(1).random((4, 3))
    dataset = Dataset("wind")
    for name, tensor in (("speed", wind), ("east", np.arange(4.0)), ("north", np.arange(3.0))):
        dataset.add_tensor(name, tensor)
    for name, text in (("dim east", "x"), ("dim north", "y"), ("unit", "m/s"), ("degrees", "deg")):
        dataset.add_meta_string(name, text)
    describe = DatasetConverter.add_metadata_for_xarray
    describe(dataset, "speed", ["dim east", "dim north"], ["east", "north"], "unit")
    describe(dataset, ["east"], "dim east", attr_names="degrees")
    describe(dataset, "north", "dim north")
    client.put_dataset(dataset)
    arrays = DatasetConverter.transform_to_xarray(client.get_dataset("wind"))
    expected = xarray.DataArray(
        wind,
        name="speed",
        dims=["x", "y"],
        coords={"east": ("x", np.arange(4.0), {"degrees": "deg"}), "north": ("y", np.arange(3.0))},
        attrs={"unit": "m/s"},
    )
    assert list(arrays) == ["speed"] and arrays["speed"].identical(expected)
    for names in ({"speed"}, 5, ["speed", 5]):
        with pytest.raises(TypeError):
            describe(dataset, names, "dim east")  # type: ignore[arg-type]


# Programs that are not changed


PROGRAM = """
    import multiprocessing, sys
    import numpy as np
    from smartredis import Client, ConfigOptions, Dataset
    from smartredis.dataset_utils import DatasetConverter
    from smartredis.error import RedisReplyError
    from smartredis.util import Dtypes
    import smartredis.client

    def square(number):
        client = smartredis.client.Client()
        client.put_tensor(f"square {number}", client.get_tensor("numbers")[number : number + 1] ** 2)

    if __name__ == "__main__":
        client = Client(None, logger_name="main")
        client.put_tensor("numbers", np.arange(4))
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            pool.map(square, range(4))
        print(sys.argv[1:], [int(client.get_tensor(f"square {number}")[0]) for number in range(4)])
"""


@pytest.mark.parametrize("how", ["program", "module"])
def test_a_program_runs_unchanged_with_its_processes(how: str, client: Client, tmp_path: Path) -> None:
    (tmp_path / "squares.py").write_text(textwrap.dedent(PROGRAM))
    program = [str(tmp_path / "squares.py")] if how == "program" else ["-m", "squares"]
    ran = subprocess.run(
        [sys.executable, "-m", "tensorlend.smartredis", *program, "one", "-m", "two"],
        env={**os.environ, "SR_LOG_LEVEL": "quiet"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "['one', '-m', 'two'] [0, 1, 4, 9]"


def test_the_runner_passes_on_how_a_program_ends(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tensorlend.smartredis", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    (tmp_path / "ends.py").write_text("import sys; sys.exit(7)")
    assert run("ends.py").returncode == 7
    assert run("absent.py").returncode == 1
    assert "usage" in run().stderr and run("-x").returncode == 1
    assert "usage" in run("--help").stdout
