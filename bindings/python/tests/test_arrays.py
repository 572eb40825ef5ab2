"""Arrays of any shape and order come back equal."""

import numpy as np
import pytest

import tensorlend


def put_get(client, array):
    client.put("x", array)
    return client.get("x").numpy()


def test_without_dimensions(client):
    found = put_get(client, np.float32(3))
    assert found.shape == () and found == 3 and found.strides == ()
    with pytest.raises(TypeError, match="without dimensions"):
        len(client.get("x"))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
def test_without_elements(client, shape):
    for order in "CF":
        found = put_get(client, np.zeros(shape, order=order))
        assert found.shape == shape and found.size == 0
    assert client.get("x", mode="cow").numpy().shape == shape
    assert np.from_dlpack(client.get("x")).shape == shape
    with client.create(shape, name="y") as draft:
        assert draft.array.shape == shape
    assert client.get("y").shape == shape


def test_fortran_order_is_kept(client):
    array = np.asfortranarray(np.arange(24).reshape(2, 3, 4))
    found = put_get(client, array)
    assert np.array_equal(found, array) and found.strides == array.strides
    turned = np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2)
    found = put_get(client, turned)
    assert np.array_equal(found, turned) and found.strides == turned.strides


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10)[::-1],
        np.arange(10)[::2],
        np.arange(24).reshape(4, 6)[:, 1:4],
        np.arange(24).reshape(4, 6)[::-1, ::-2],
        np.broadcast_to(np.arange(3), (4, 3)),
        np.broadcast_to(np.int16(7), (2, 2)),
        np.lib.stride_tricks.sliding_window_view(np.arange(6), 3),
        np.arange(24).reshape(4, 6).T[1:, ::2],
    ],
    ids=lambda array: str(array.strides),
)
def test_the_rest_is_stored_in_c_order(client, array):
    found = put_get(client, array)
    assert np.array_equal(found, array) and found.flags.c_contiguous


def test_axes_of_one_element_lie_anywhere(client):
    array = np.lib.stride_tricks.as_strided(np.arange(6.0), (1, 6, 1), (1000, 8, -77))
    assert np.array_equal(put_get(client, array), array)


def test_large_arrays_are_copied_beside_other_threads(client):
    for array in [np.arange(1 << 20), np.arange(1 << 20).reshape(1024, 1024).T, np.arange(1 << 20)[::-1]]:
        assert np.array_equal(put_get(client, array), array)


def test_misaligned_arrays(client):
    array = np.frombuffer(bytes(range(33)), "uint8")[1:].view("float64")
    assert not array.flags.aligned
    assert put_get(client, array).tobytes() == array.tobytes()


def test_dimensions_have_an_end(client):
    assert put_get(client, np.zeros((1,) * 16)).ndim == 16
    with pytest.raises(tensorlend.ArgumentError, match="more than 16 dimensions"):
        client.put("x", np.zeros((1,) * 17))


class TestAnyArray:
    """Of any dtype, shape, order, steps and repetitions."""

    def test_comes_back_equal(self, client):
        hypothesis = pytest.importorskip("hypothesis")
        import hypothesis.extra.numpy as hnp
        import hypothesis.strategies as st

        dtypes = st.one_of(
            hnp.boolean_dtypes(),
            hnp.integer_dtypes(endianness="="),
            hnp.unsigned_integer_dtypes(endianness="="),
            hnp.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
            hnp.complex_number_dtypes(endianness="=", sizes=(64, 128)),
        )

        @hypothesis.settings(max_examples=400, deadline=None)
        @hypothesis.given(st.data(), hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=4)))
        def check(data, array):
            array = array.transpose(data.draw(st.permutations(range(array.ndim))))
            if data.draw(st.booleans()):
                array = np.copy(array, order=data.draw(st.sampled_from("CFK")))
            steps = st.sampled_from([1, 1, 1, 2, -1, -2])
            array = array[tuple(slice(None, None, data.draw(steps)) for _ in range(array.ndim))]
            if data.draw(st.booleans()) and array.ndim < 6:
                array = np.broadcast_to(array, (2, *array.shape))
            client.put("any", array)
            lease = client.get("any")
            found = lease.numpy()
            assert found.dtype == array.dtype and found.shape == array.shape
            assert found.tobytes() == array.tobytes()
            assert np.from_dlpack(lease).tobytes() == array.tobytes()
            assert client.get("any", mode="cow").numpy().tobytes() == array.tobytes()
            out = np.empty(array.shape, array.dtype)
            client.get_into("any", out)
            assert out.tobytes() == array.tobytes()
            if array.size and (array.flags.c_contiguous or array.flags.f_contiguous):
                kept = [s for s, d in zip(found.strides, found.shape, strict=True) if d > 1]
                assert kept == [s for s, d in zip(array.strides, array.shape, strict=True) if d > 1]

        check()
