"""A program of a user, which mypy and pyright check: test_typing.py."""

# ruff: noqa
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import tensorlend
from tensorlend import DeviceLease, Draft, Lease


def mean(lease: Lease[np.float32]) -> float:
    assert_type(lease.dtype, np.dtype[np.float32])
    assert_type(lease.numpy(), npt.NDArray[np.float32])
    return float(lease.numpy().mean())


def publish(client: tensorlend.Client) -> tensorlend.Version:
    with client.create((480, 640), np.uint8, name="frame") as draft:
        assert_type(draft, Draft[np.uint8])
        assert_type(draft.array, npt.NDArray[np.uint8])
        assert_type(draft.numpy(), npt.NDArray[np.uint8])
        draft[:] = 128
    assert_type(client.create(3), Draft[np.float64])
    assert_type(client.create(3, "float32"), Draft[Any])
    assert_type(client.create(3, np.dtype(np.int16)), Draft[np.int16])
    assert_type(client.create(3, np.float32, device="cuda:0"), tensorlend.DeviceDraft[np.float32])
    client.put("list", [1.0, 2.0], metadata={"epoch": 3}, ttl=60)
    client.put("lists", [[1, 2], (3, True)])
    client.put("arrays", [np.zeros(3), np.ones(3)])
    for value in (3, 1j, range(3), b"bytes", bytearray(3), memoryview(b"x"), np.float32(1), client.create(3)):
        client.put("one", value)
    return client.put("weights", np.zeros(3))


def read(client: tensorlend.Client) -> None:
    lease = client.get("weights")
    assert_type(lease, Lease[Any] | DeviceLease[Any])
    assert_type(lease.shape, tuple[int, ...])
    assert_type(lease.numpy(), npt.NDArray[Any])
    assert_type(np.asarray(lease), npt.NDArray[Any])
    memoryview(lease).tolist()
    bool(lease.dtype == np.float32)
    for row in lease:
        print(row)
    typed = client.get("weights", dtype=np.float32)
    assert_type(typed, Lease[np.float32] | DeviceLease[np.float32])
    if isinstance(typed, Lease):
        mean(typed)
    assert_type(client.get("weights", default=None), Lease[Any] | DeviceLease[Any] | None)
    assert_type(client.get("weights", dtype=np.float32, default=3), Lease[np.float32] | DeviceLease[np.float32] | int)
    assert_type(client["weights"], Lease[Any] | DeviceLease[Any] | tensorlend.Dataset)
    assert_type([name for name in client], list[str])
    assert_type(client.wait_for("weights", 10, dtype=np.float64).numpy(), npt.NDArray[np.float64])
    value = client.get_value("weights")
    if isinstance(value, tensorlend.Dataset):
        assert_type(value["x"], Lease[Any] | DeviceLease[Any])
        assert_type(value.numpy(), tuple[npt.NDArray[Any], ...])
    assert_type([info.nbytes for info in client.list()], list[int])
    assert_type(client.length("episodes"), int)
    assert_type(client.stat()["uids"][0]["bytes"], int)


def follow(client: tensorlend.Client) -> None:
    with client.stream("camera", policy="drop-oldest") as camera, client.subscribe("camera") as frames:
        camera.send({"image": np.zeros((4, 4))}, timestamp=17)
        for message in frames:
            with message:
                assert_type(message.dataset["image"].shape, tuple[int, ...])
                assert_type(message.tensor.numpy(), npt.NDArray[Any])


async def wait(client: tensorlend.Client, caller: tensorlend.Caller) -> None:
    assert_type(await client.wait_length_async("episodes", 3, ">=", 10), int)
    lease = await client.wait_for_async("weights", 10, dtype=np.float32)
    assert_type(lease, Lease[np.float32] | DeviceLease[np.float32])
    subscription = await client.subscribe_async("camera", pollable=True, wait=10)
    async for message in subscription:
        assert_type(message, tensorlend.Message)
    answer = await caller.call_async(np.zeros(3), 10, timestamp=3)
    assert_type(answer, Lease[Any] | DeviceLease[Any] | tensorlend.Dataset)


def batches(client: tensorlend.Client, names: list[str]) -> None:
    for x, y in client.batches(names, "numpy"):
        print(x, y)
    with client.batches(names) as values:
        value = next(values)
        if not isinstance(value, tuple):
            assert_type(value.version, tensorlend.Version)


def serve(client: tensorlend.Client) -> None:
    with client.serve("double") as server:
        for call in server:
            with call:
                call.respond(call.numpy() * 2)


def store(tensors: Mapping[str, npt.NDArray[np.float32]], client: tensorlend.Client) -> None:
    client.put_dataset("batch", tensors)
    ref = client.share(np.arange(3))
    assert_type(ref.take().numpy(), npt.NDArray[Any])


def catch(client: tensorlend.Client) -> None:
    try:
        client.put("x", np.zeros(1 << 40))
    except tensorlend.LimitError as error:
        assert_type(error.kind, tensorlend.LimitKind | None)
        assert_type(error.code, str)
