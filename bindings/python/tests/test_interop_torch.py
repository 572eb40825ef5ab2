"""torch, both ways."""

import gc

import numpy as np
import pytest
from places import Place

import tensorlend

torch = pytest.importorskip("torch", reason="torch is not installed")

DTYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(client, name):
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    tensor = torch.tensor([[0, 1, 2], [1, 0, 1]], dtype=torch.float32).to(getattr(torch, name))
    client.put("x", tensor)
    lease = client.get("x")
    assert lease.dtype == name and lease.shape == (2, 3)
    back = lease.torch()
    assert back.dtype == tensor.dtype and back.device.type == "cpu"
    assert torch.equal(back.to(torch.complex128), tensor.to(torch.complex128))
    with client.create((2, 3), tensor.dtype, name="y") as draft:
        draft.torch().copy_(tensor)
    assert torch.equal(client.get("y").torch().to(torch.complex128), tensor.to(torch.complex128))


def test_in_place(client):
    client.put("x", np.arange(6.0).reshape(2, 3))
    lease = client.get("x")
    for tensor in [lease.torch(), torch.from_dlpack(lease)]:
        assert tensor.data_ptr() == lease.__array_interface__["data"][0]
        assert tensor.stride() == (3, 1) and float(tensor.sum()) == 15


def test_orders_and_steps(client):
    tensor = torch.arange(24).reshape(2, 3, 4)
    for view in [tensor.permute(2, 0, 1), tensor[:, ::2], tensor[..., 0], tensor.expand(2, 2, 3, 4), torch.zeros(0, 3), torch.tensor(3)]:
        client.put("x", view)
        back = client.get("x").torch()
        assert torch.equal(back, view)
    client.put("x", tensor.permute(2, 0, 1))
    assert client.get("x").torch().stride() == tensor.permute(2, 0, 1).stride()


def test_what_torch_does_not_lend(client):
    for tensor in [torch.eye(3).to_sparse(), torch.ones(3, device="meta")]:
        with pytest.raises((tensorlend.Error, BufferError, RuntimeError)):
            client.put("x", tensor)
    assert "x" not in client


def test_parameters_are_values(client):
    client.put("x", torch.nn.Parameter(torch.ones(3)))
    assert client.get("x").torch().tolist() == [1, 1, 1]


def test_views_that_calculate(client):
    """The memory of these tensors holds other numbers than they show."""
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    for view in [tensor.conj(), tensor.conj().imag, torch._neg_view(torch.ones(3)), tensor.conj().conj(), tensor.conj()[1:]]:
        client.put("x", view)
        assert client.get("x").torch().tolist() == view.tolist()


def test_a_private_copy_can_be_written(client):
    client.put("x", np.zeros(1000, "float32"))
    mine = client.get("x", mode="cow").torch()
    mine += 1
    assert float(mine.sum()) == 1000 and not client.get("x").numpy().any()


def test_a_tensor_keeps_the_memory(client):
    place = Place(client)
    place.draft.array[:] = 5
    place.draft.publish("x")
    part = client.get("x").torch()[10:20]
    client.delete("x")
    gc.collect()
    assert place.stays() and bool((part == 5).all())
    del part
    gc.collect()
    assert place.comes_back()


def test_a_tensor_of_a_draft_keeps_its_memory(client):
    place = Place(client)
    tensor = place.draft.torch()
    tensor.fill_(5)
    place.draft.publish("x")
    client.delete("x")
    assert place.stays() and bool((tensor == 5).all())
    del tensor
    gc.collect()
    assert place.comes_back()


def test_get_into_a_tensor(client):
    client.put("x", np.arange(6.0))
    out = torch.zeros(6, dtype=torch.float64)
    client.get_into("x", out.numpy())
    assert out.tolist() == [0, 1, 2, 3, 4, 5]


def test_streams_of_tensors(client):
    stream = client.stream("s")
    subscription = client.subscribe("s", start="next")
    stream.send({"image": torch.ones(2, 2), "label": torch.tensor(3)})
    dataset = subscription.recv(10).dataset
    assert dataset["image"].torch().sum() == 4 and dataset["label"].torch() == 3


def kinds(client):
    """A dataset of tensors of all kinds, and they."""
    tensors = {name: torch.tensor([[0, 1], [1, 0]]).to(getattr(torch, name)) for name in DTYPES if hasattr(torch, name)}
    plain = torch.arange(24).reshape(2, 3, 4)
    tensors |= {"permuted": plain.permute(2, 0, 1), "none": torch.zeros(0, 3), "scalar": torch.tensor(3)}
    client.put_dataset("kinds", tensors)
    return list(tensors.values())


def alike(found, wanted):
    """Whether they are the same to the last bit, and lie alike."""
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and repr(a) == repr(b)
        for a, b in zip(found, wanted, strict=True)
    )


def test_datasets_and_batches(client):
    tensors = kinds(client)
    client.put("x", torch.ones(3))
    dataset = client.get_dataset("kinds")
    for found in [dataset.torch(), *client.batches(["kinds", "kinds"], "torch", ahead=1), *client.batches(["kinds"] * 3, "torch")]:
        assert type(found) is tuple and alike(found, tensors)
        assert [tensor.data_ptr() for tensor in found] == [lease.torch().data_ptr() for lease in dataset.values()]
    assert [x.tolist() for x in client.batches(["x", "x"], "torch")] == [[1, 1, 1]] * 2
    assert alike(next(client.batches(["kinds"], "torch", mode="cow")), tensors)
    client.put_dataset("empty", {})
    assert client.get_dataset("empty").torch() == next(client.batches(["empty"], "torch")) == ()


def test_tensors_of_a_batch_keep_its_memory(client):
    place = Place(client)
    place.draft.array[:] = 5
    client.put_dataset("x", {"a": place.draft, "b": torch.ones(3)})
    client.put_dataset("y", {"c": torch.zeros(1)})
    batches = client.batches(["y", "x"], "torch")
    next(batches)
    client.delete("x")
    gc.collect()
    assert place.stays()
    a, b = next(batches)
    del batches, b
    part = a.view(2, -1)[1]
    del a
    assert place.stays() and bool((part == 5).all())
    # Both share one lease.
    del part
    gc.collect()
    assert place.comes_back()


def test_private_batches_can_be_written(client):
    client.put_dataset("x", {"a": torch.zeros(1000)})
    for (a,) in client.batches(["x", "x"], "torch", mode="cow"):
        a += 1
        assert float(a.sum()) == 1000
    assert not any(client.get_dataset("x").torch()[0])


OTHER_RELEASES = """
import sys, numpy as np, tensorlend, torch
if "table" in sys.argv and hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    del torch.Tensor.__dlpack_c_exchange_api__
mode, convert = "read", torch._C._from_dlpack
if "versions" in sys.argv:
    # Before DLPack 1.0, which knows read-only memory.
    def legacy(capsule):
        if "versioned" in repr(capsule):
            raise RuntimeError("unknown capsule")
        return convert(capsule)
    torch._C._from_dlpack, torch.from_dlpack, mode = legacy, lambda owner: legacy(owner.__dlpack__()), "cow"
torch.set_default_device("meta")
with tensorlend.embedded() as broker, broker.connect() as client:
    client.put_dataset("x", {"a": np.arange(3.0), "b": np.int64(7)})
    dataset = client.get_dataset("x", mode=mode)
    for a, b in [dataset.torch(), *client.batches(["x"] * 20, "torch", mode=mode)]:
        assert (a.tolist(), int(b)) == ([0, 1, 2], 7)
    assert dataset["a"].torch().tolist() == [0, 1, 2]
    del dataset, a, b
"""


@pytest.mark.parametrize("without", [(), ("table",), ("table", "versions")])
def test_releases_that_know_less(script, without):
    script(OTHER_RELEASES, *without)
