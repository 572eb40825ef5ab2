"""Models by the calls of SmartRedis, with a runner."""

import os
from pathlib import Path

import numpy as np
import pytest
from runner import running
from waiting import eventually

import tensorlend
from tensorlend.smartredis import Client
from tensorlend.smartredis.error import RedisNotImplementedError, RedisReplyError, RedisRuntimeError

onnx = pytest.importorskip("onnx")


def affine(factor: float) -> bytes:
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [helper.make_node("Mul", ["x", "factor"], ["y"]), helper.make_node("Add", ["x", "x"], ["z"])]
    ports = [helper.make_tensor_value_info(name, floats, ["N"]) for name in "xyz"]
    weight = helper.make_tensor("factor", floats, [1], [factor])
    graph = helper.make_graph(nodes, "affine", ports[:1], ports[1:], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def test_models(client: Client, broker: tensorlend.Embedded, tmp_path: Path) -> None:
    file = tmp_path / "affine.onnx"
    file.write_bytes(affine(3.0))
    assert not client.model_exists("affine") and not client.poll_model("affine", 1, 2)
    with pytest.raises(RedisRuntimeError, match="affine"):
        client.get_model("affine")
    with pytest.raises(RedisRuntimeError, match="affine"):
        client.run_model("affine", "in", "out")
    client.set_model_from_file("affine", str(file), "ONNX", "CPU", batch_size=4, min_batch_size=2, min_batch_timeout=5)
    assert client.model_exists("affine") and client.poll_model("affine", 1, 1)
    assert client.get_model("affine") == file.read_bytes()
    client.put_tensor("in", np.array([1, 2], "f4"))
    with running(broker):
        client.run_model("affine", inputs=["in"], outputs=["three", "two"])
        np.testing.assert_array_equal(client.get_tensor("three"), [3, 6])
        np.testing.assert_array_equal(client.get_tensor("two"), [2, 4])
        client.set_model_multigpu("other", affine(5.0), "onnx", 0, 2)
        client.run_model_multigpu("other", 1, 0, 2, "in", "five")
        np.testing.assert_array_equal(client.get_tensor("five"), [5, 10])
        client.put_tensor("double", np.array([1.0]))
        with pytest.raises(RedisReplyError, match="the model takes f32"):
            client.run_model("affine", "double", ["a", "b"])
        with pytest.raises(RedisReplyError, match="absent"):
            client.run_model("affine", "absent", ["a", "b"])
    client.delete_model("affine")
    client.delete_model_multigpu("other", 0, 2)
    assert not client.model_exists("affine") and not client.model_exists("other")
    with pytest.raises(RedisNotImplementedError, match="export"):
        client.set_model("torch", b"model", "TORCH")


def test_statistics(client: Client, broker: tensorlend.Embedded) -> None:
    address = os.environ["SSDB"]
    with pytest.raises(RedisRuntimeError, match="absent"):
        client.get_ai_info([address], "absent")
    client.set_model("affine", affine(3.0), "ONNX", tag="first")
    nothing = {"key": "affine", "type": "MODEL", "backend": "ONNX", "device": "CPU", "tag": "first"}
    nothing |= {"duration": "0", "samples": "0", "calls": "0", "errors": "0"}
    assert client.get_ai_info([address, address], "affine") == [nothing, nothing]
    client.put_tensor("in", np.array([1, 2], "f4"))

    def is_told(calls: int) -> bool:
        return client.get_ai_info([address], "affine")[0]["calls"] == str(calls)

    with running(broker):
        for _ in range(2):
            client.run_model("affine", "in", ["y", "z"])
        with pytest.raises(RedisReplyError, match="absent"):
            client.run_model("affine", "absent", ["y", "z"])
        eventually("statistics", lambda: is_told(3))
        [info] = client.get_ai_info([address], "affine", reset_stat=True)
        assert (info["samples"], info["errors"]) == ("4", "1") and int(info["duration"]) > 0
        assert client.get_ai_info([address], "affine") == [nothing]
        client.run_model("affine", "in", ["y", "z"])
        eventually("statistics", lambda: is_told(1))
        assert client.get_ai_info([address], "affine")[0]["samples"] == "2"
    client.delete_model("affine")
    # Deleting the model also deletes the record of its reset statistics.
    assert tensorlend.connect(broker.address).list("model/affine/.smartredis") == []
