"""jax, both ways."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
jnp = pytest.importorskip("jax.numpy", reason="jax is not installed")


@pytest.mark.parametrize("name", ["bool", "uint8", "int32", "float16", "bfloat16", "float32", "complex64"])
def test_dtypes(client, name):
    array = jnp.array([[0, 1, 2], [1, 0, 1]]).astype(name)
    client.put("x", array)
    lease = client.get("x")
    assert (lease.dtype, lease.shape) == (name, (2, 3))
    for back in [jnp.from_dlpack(client.get("x", mode="cow")), jnp.asarray(lease.numpy())]:
        assert back.dtype == array.dtype and bool((back == array).all())


def test_a_jax_that_knows_no_read_only_tensors_is_told_what_to_do(client):
    client.put("x", np.arange(4))
    try:
        array = jnp.from_dlpack(client.get("x"))
    except BufferError as error:
        assert 'mode="cow"' in str(error)
    else:
        assert array.tolist() == [0, 1, 2, 3]


def test_in_place(client):
    client.put("x", np.arange(4096, dtype="float32"))
    lease = client.get("x", mode="cow")
    assert jnp.from_dlpack(lease).unsafe_buffer_pointer() == lease.__array_interface__["data"][0]


def test_calculating_with_what_was_lent(client):
    client.put("x", np.arange(1000, dtype="float32"))
    array = jnp.from_dlpack(client.get("x", mode="cow"))
    client.delete("x")
    for number in range(50):
        client.put("y", np.full(1000, number, "float32"))
    assert float(jax.jit(lambda x: (2 * x).sum())(array)) == 999000


def test_fortran_order(client):
    client.put("x", np.asfortranarray(np.arange(6, dtype="int32").reshape(2, 3)))
    assert jnp.from_dlpack(client.get("x", mode="cow")).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_float8(client):
    if not hasattr(jnp, "float8_e4m3fn"):
        pytest.skip("this jax has no float8_e4m3fn")
    client.put("x", jnp.array([0.5, 1, 2]).astype(jnp.float8_e4m3fn))
    assert client.get("x").dtype == "float8_e4m3fn"
    assert client.get("x").numpy().astype("float32").tolist() == [0.5, 1, 2]
