"""Weights under a name: new versions, and the older ones in processes that use them."""

import gc
import signal

import numpy as np
import pytest
from programs import run, succeeds
from safetensors.numpy import save_file
from waiting import LONG

import tensorlend
from tensorlend import weights
from tensorlend.numpy import load_weights


def saved(path, value):
    save_file({"a": np.full((64, 64), value, np.float32), "b": np.arange(5)}, path)
    return path


def test_a_name_changes_to_the_new_weights_and_users_keep_the_old(client, tmp_path):
    first = weights.publish(saved(tmp_path / "1.safetensors", 1), "llama", client=client)
    old = load_weights("llama", client=client)
    assert (old["a"] == 1).all() and old["b"].tolist() == [0, 1, 2, 3, 4]
    (tmp_path / "1.safetensors").unlink()
    second = weights.publish(saved(tmp_path / "2.safetensors", 2), "llama", client=client)
    assert second != first
    assert (old["a"] == 1).all() and (load_weights("llama", client=client)["a"] == 2).all()
    assert client.leased() > 0
    del old
    gc.collect()
    assert client.leased() == 0, "the memory of the first weights ends with its last user"
    with pytest.raises(ValueError, match="read-only"):
        load_weights("llama", client=client, mode="read")["a"][0] = 0


def test_what_is_no_weights_is_refused(client, tmp_path):
    with pytest.raises(tensorlend.NotFoundError):
        load_weights("llama", client=client)
    with pytest.raises(tensorlend.TimeoutError):
        load_weights("llama", client=client, timeout=0.05)
    for value in (np.zeros(3), np.zeros(100, np.uint8)):
        client.put("weights/named/llama", value)
        with pytest.raises(tensorlend.ArgumentError, match=r"no weights.*tensorlend\.weights\.publish"):
            load_weights("llama", client=client)
    (tmp_path / "wrong").write_bytes(b"nothing")
    with pytest.raises(tensorlend.ArgumentError, match="no valid safetensors file"):
        weights.publish(tmp_path / "wrong", "llama", client=client)
    with pytest.raises(FileNotFoundError):
        weights.publish(tmp_path / "nowhere", "llama", client=client)


def test_a_publisher_killed_before_the_end_leaves_the_old_weights(broker, client, tmp_path):
    weights.publish(saved(tmp_path / "1.safetensors", 1), "llama", client=client)
    saved(tmp_path / "2.safetensors", 2)
    program = """
import os, signal, sys
from tensorlend import _weights, connect, weights
read = _weights._read_unchanged
def killed(*arguments):
    read(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
_weights._read_unchanged = killed
weights.publish(sys.argv[2], "llama", client=connect(sys.argv[1]))
"""
    done = run("-c", program, broker.address, tmp_path / "2.safetensors")
    assert done.returncode == -signal.SIGKILL
    assert (load_weights("llama", client=client)["a"] == 1).all()


def test_the_command(broker, client, tmp_path):
    path = saved(tmp_path / "1.safetensors", 4)
    done = succeeds("-m", "tensorlend.weights", "load", path, "--name", "llama", "--address", broker.address)
    assert done.stdout == f"weights/named/llama: {client.info('weights/named/llama').nbytes} bytes\n"
    assert (load_weights("llama", client=client, timeout=LONG)["a"] == 4).all()


def test_tensors_of_torch(client, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    weights.publish(saved(tmp_path / "1.safetensors", 1), "llama", client=client)
    from tensorlend.torch import load_weights

    assert torch.equal(load_weights("llama", client=client)["a"], torch.ones(64, 64))
