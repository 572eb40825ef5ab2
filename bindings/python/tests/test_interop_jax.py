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
    for back in [jnp.from_dlpack(client.get("x", mode="cow")), jnp.asarray(lease.numpy()), jnp.asarray(lease)]:
        assert back.dtype == array.dtype and bool((back == array).all())


def test_a_jax_that_knows_no_read_only_tensors_is_told_what_to_do(client):
    client.put("x", np.arange(4))
    try:
        array = jnp.from_dlpack(client.get("x"))
    except BufferError as error:
        assert 'mode="cow"' in str(error) and "jnp.asarray(lease)" in str(error)
    else:
        assert array.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["read", "cow"])
@pytest.mark.parametrize("make", [jnp.asarray, lambda lease: jax.device_put(jnp.asarray(lease)), lambda lease: lease.__jax_array__()])
def test_arrays_in_place(client, mode, make):
    """Also read-only: jax never writes to what it was given."""
    client.put("x", np.arange(4096, dtype="float32").reshape(2, -1))
    lease = client.get("x", mode=mode)
    array = make(lease)
    assert array.unsafe_buffer_pointer() == lease.__array_interface__["data"][0] and array.shape == (2, 2048)
    del lease
    client.delete("x")
    for number in range(50):
        client.put("y", np.full(4096, number, "float32"))
    assert array.sum() == 4096 * 4095 / 2 and jnp.array(array, copy=True)[1, 1] == 2049


def test_a_donated_lease_is_not_written(client):
    client.put("x", np.arange(1 << 18, dtype="float32"))
    lease = client.get("x")
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    assert double(jnp.asarray(lease))[3] == 6 and (lease.numpy() == np.arange(1 << 18)).all()


def test_nothing(client):
    client.put("x", np.zeros((3, 0), "float32"))
    assert jnp.asarray(client.get("x")).shape == jnp.from_dlpack(client.get("x", mode="cow")).shape == (3, 0)


def test_other_arrays_in_place(client):
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
