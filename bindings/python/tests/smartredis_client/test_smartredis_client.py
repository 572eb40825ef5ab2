"""How to make a client of ``tensorlend.smartredis``, and its methods that handle no data."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from .numbered import SSDB, each_raises, numbered

import tensorlend
from tensorlend.smartredis import Client, ConfigOptions
from tensorlend.smartredis.error import (
    RedisConnectionError,
    RedisKeyError,
    RedisNotImplementedError,
    RedisReplyError,
    RedisRuntimeError,
)


@pytest.mark.parametrize("ssdb", [None, "", "host", ":6379", "host:", "host:port", "host:6379;", "unix://"])
def test_an_address_that_cannot_be(ssdb: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if ssdb is None:
        monkeypatch.delenv("SSDB")
    else:
        monkeypatch.setenv("SSDB", ssdb)
    each_raises(RedisConnectionError, [Client, lambda: Client(False)])


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
    assert 0.5 < time.monotonic() - started


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
    client.config_set("ignore-warnings", "ARM64-COW-BUG", SSDB)
    assert client.config_get("ignore-warnings", SSDB) == {"ignore-warnings": "ARM64-COW-BUG"}
    assert client.config_get("absent", SSDB) == {}
    for name, value in (("absent", "1"), ("lua-time-limit", "long")):
        with pytest.raises(RedisReplyError, match=name):
            client.config_set(name, value, SSDB)


def test_the_broker_takes_the_part_of_the_node(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.put_tensor("tensor", np.ones(1000))
    (info,) = client.get_db_node_info([SSDB])
    assert info["Server"]["tensorlend_version"]
    assert int(info["Memory"]["used_memory"]) >= 8000
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


def test_scripts_and_other_backends_say_that_they_are_not_here(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_bytes(b"model")
    each_raises(
        RedisNotImplementedError,
        [
            lambda: client.set_model("m", b"model", "TORCH", "CPU"),
            lambda: client.set_model_from_file("m", str(file), "torch"),
            lambda: client.set_model_multigpu("m", b"model", "TFLITE", 0, 1),
            lambda: client.set_function("f", numbered),
            lambda: client.set_script_from_file("s", str(file)),
            lambda: client.run_script("s", "f", "in", ["out"]),
        ],
        match="ONNX|not here yet",
    )
    assert not client.model_exists("m")
    each_raises(
        TypeError,
        [
            lambda: client.set_model("m", b"model", "ABACUS"),
            lambda: client.set_script("s", "text", "TPU"),
            lambda: client.run_model("m", 5),  # type: ignore[arg-type]
        ],
    )
    with pytest.raises(ValueError, match="num_gpus"):
        client.run_model_multigpu("m", 0, 0, 0)
    with pytest.raises(FileNotFoundError):
        client.set_model_from_file("m", str(tmp_path / "absent"), "TORCH")
