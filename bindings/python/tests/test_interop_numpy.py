"""numpy, both ways."""

import numpy as np
import pytest


def where(array):
    return array.__array_interface__["data"][0]


def test_all_ways_lead_to_the_same_bytes(client):
    client.put("x", np.arange(6.0).reshape(2, 3))
    lease = client.get("x")
    ways = [lease.numpy(), np.asarray(lease), np.from_dlpack(lease), np.frombuffer(lease).reshape(2, 3), lease.__array__()]
    for array in ways:
        assert where(array) == lease.__array_interface__["data"][0]
        assert not array.flags.writeable and array.tolist() == [[0, 1, 2], [3, 4, 5]]
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_ufuncs_and_functions_take_leases(client):
    client.put("x", np.arange(4.0))
    lease = client.get("x")
    assert np.mean(lease) == 1.5 and np.add(lease, lease).tolist() == [0, 2, 4, 6]
    assert np.concatenate([lease, lease]).shape == (8,) and np.array(lease, copy=True).flags.writeable


def test_subclasses(client):
    client.put("x", np.arange(4).astype("float32").view(np.recarray))
    assert client.get("x").dtype == "float32"


def test_memory_maps(client, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1000))
    client.put("x", np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert client.get("x").numpy().sum() == 499500
    np.save(tmp_path / "y.npy", client.get("x"))
    assert np.load(tmp_path / "y.npy").sum() == 499500
