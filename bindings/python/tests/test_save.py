"""Files of `tensorlend save`, read by the safetensors package, and files of that package, read by `tensorlend load`."""

import json
import os
import pathlib
import subprocess

import ml_dtypes
import numpy as np
import pytest
from tool import command

import tensorlend

safetensors = pytest.importorskip("safetensors")
numpy_files = pytest.importorskip("safetensors.numpy")


def tool(broker: tensorlend.Embedded, *words: str, folder: pathlib.Path) -> str:
    """Runs the command line tool."""
    environment = {**os.environ, "TENSORLEND_SOCKET": str(broker.address)}
    done = subprocess.run([*command(), *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


DTYPES = [
    *("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
]


def arrays() -> dict[str, np.ndarray]:
    return {f"types/{np.dtype(d).name}": np.arange(6).reshape(2, 3).astype(d) for d in DTYPES}


def raw(path: pathlib.Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Type, shape and bytes of each tensor, as the package reads them."""
    found = safetensors.deserialize(path.read_bytes())
    return {name: (info["dtype"], list(info["shape"]), bytes(info["data"])) for name, info in found}


def test_the_package_reads_what_is_saved(broker, client, tmp_path):
    for name, array in arrays().items():
        client.put(name, array)
    client.put("empty", np.zeros((3, 0), "f4"))
    client.put("one", np.float64(7))
    client.put("columns", np.asfortranarray(np.arange(6, dtype="i4").reshape(2, 3)))
    tool(broker, "save", "*", "-o", "all.safetensors", folder=tmp_path)

    found = raw(tmp_path / "all.safetensors")
    assert set(found) == {*arrays(), "empty", "one", "columns"}
    for name, array in arrays().items():
        assert found[name][1:] == ([2, 3], array.tobytes()), name
    assert found["types/bfloat16"][0] == "BF16" and found["types/float8_e4m3fn"][0] == "F8_E4M3"
    assert found["empty"][1:] == ([3, 0], b"") and found["one"][1:] == ([], np.float64(7).tobytes())
    assert found["columns"][2] == np.arange(6, dtype="i4").tobytes()
    with safetensors.safe_open(tmp_path / "all.safetensors", framework="np") as file:
        notes = json.loads(file.metadata()["tensorlend"])
        assert file.get_tensor("types/float32").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert notes["version"] == 1 and {it["name"] for it in notes["names"]} == set(found)


def test_what_the_package_saved_is_loaded(broker, client, tmp_path):
    numpy_files.save_file(arrays(), tmp_path / "theirs.safetensors")
    printed = tool(broker, "load", "theirs.safetensors", "--prefix", "p/", "--json", folder=tmp_path)
    assert sorted(json.loads(printed)["names"]) == sorted(f"p/{name}" for name in arrays())
    tool(broker, "save", "p/*", "-o", "ours.safetensors", folder=tmp_path)
    found, theirs = raw(tmp_path / "ours.safetensors"), raw(tmp_path / "theirs.safetensors")
    for name, array in arrays().items():
        lease = client.get(f"p/{name}")
        assert lease.shape == (2, 3) and lease.nbytes == array.nbytes
        assert found[f"p/{name}"] == theirs[name]


def test_metadata_survives_a_program_that_reads_and_writes_all(broker, client, tmp_path):
    for name, array in arrays().items():
        client.put(name, array, metadata=name.encode() + b"\xff")
    tool(broker, "save", "*", "-o", "a.safetensors", folder=tmp_path)
    with safetensors.safe_open(tmp_path / "a.safetensors", framework="np") as file:
        notes = file.metadata()
    numpy_files.save_file(arrays(), tmp_path / "b.safetensors", metadata=notes)
    for name in arrays():
        client.delete(name)
    tool(broker, "load", "b.safetensors", folder=tmp_path)
    for name in arrays():
        assert client.get(name).metadata_bytes == name.encode() + b"\xff"
    tool(broker, "save", "*", "-o", "c.safetensors", folder=tmp_path)
    assert raw(tmp_path / "c.safetensors") == raw(tmp_path / "a.safetensors")
