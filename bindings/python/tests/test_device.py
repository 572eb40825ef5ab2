"""Tensors on devices, on a driver that is a stand-in (tests/fakecuda): each program runs in a process of its own.

numba and cuda.core look on from their side where they are installed; DLPack's structures are looked at by ctypes.
"""

import importlib.util
import pathlib
import signal
import subprocess
import textwrap
from collections.abc import Callable, Iterator

import pytest

from cards import CONFIG, World, blocks, finish

START = """
import ctypes, gc, os, pickle, sys, threading, time
import numpy as np
import tensorlend

client = tensorlend.connect()

def until(done, seconds=60):
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.002)

class Gate:
    \"\"\"While it is there, no stream of this process goes on.\"\"\"
    path = os.path.join(os.environ["FAKECUDA_DIR"], f"gate.{os.getpid()}")
    def __enter__(self):
        open(self.path, "w").close()
        return self
    def open(self):
        if os.path.exists(self.path):
            os.unlink(self.path)
    def __exit__(self, *_):
        self.open()

def raises(kind, text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), f"{text!r} is not in {error}"
        return error
    raise AssertionError(f"{call} did not raise")
"""
NUMBA = START + "from numba import cuda\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("machine"))
    world.start()
    yield world
    world.stop()


Program = Callable[..., str]


@pytest.fixture
def program(world: World) -> Program:
    def run(text: str, *arguments: str, **settings: str) -> str:
        return world.run(START + textwrap.dedent(text), *arguments, **settings)

    return run


@pytest.fixture
def numba(world: World) -> Program:
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed (bindings/python/tests/requirements-device.txt)")

    def run(text: str, *arguments: str, **settings: str) -> str:
        return world.run(NUMBA + textwrap.dedent(text), *arguments, **settings)

    return run


def test_every_dtype_goes_there_and_back(program: Program):
    program("""
        names = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
                 "float64", "complex64", "complex128"]
        kinds = [np.dtype(name) for name in names]
        try:
            import ml_dtypes
            kinds += [np.dtype(getattr(ml_dtypes, name)) for name in
                      ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")]
        except ImportError:
            pass
        for kind in kinds:
            for shape in [(), (0, 3), (5,), (2, 3, 4)]:
                array = (np.arange(np.prod(shape, dtype=int)) % 2).astype(kind).reshape(shape)
                client.put("x", array, device="cuda:0")
                lease = client.get("x")
                back = lease.to_host()
                assert back.dtype == kind and back.shape == shape and back.tobytes() == array.tobytes(), (kind, shape)
                assert lease.dtype == kind.name and lease.nbytes == array.nbytes and lease.itemsize == kind.itemsize
                assert lease.__cuda_array_interface__["typestr"][1] in "buifc"
        big = np.arange(1 << 20, dtype=np.int32)  # longer than what is staged at a time
        client.put("big", big, device=0)
        assert np.array_equal(client.get("big").to_host(), big)
    """)


def test_orders(program: Program):
    program("""
        cube = np.arange(24.0).reshape(2, 3, 4)
        for array in [np.asfortranarray(cube), cube.transpose(1, 0, 2), cube[::-1], cube[:, ::2], cube[..., 1]]:
            client.put("x", array, device="cuda:0")
            lease = client.get("x")
            assert np.array_equal(lease.to_host(), array) and lease.shape == array.shape
        assert client.put("x", np.asfortranarray(cube), device="cuda:0") and client.get("x").strides == np.asfortranarray(cube).strides
        draft = client.create((2, 3), "int16", strides=[2, 4], device="cuda:0")
        assert draft.strides == (2, 4)
        raises(ValueError, "order", draft.copy_from, np.zeros((2, 3), "int16"))
        draft.copy_from(np.asfortranarray([[1, 2, 3], [4, 5, 6]]).astype("int16", order="F"))
        draft.publish("f")
        assert client.get("f").to_host().tolist() == [[1, 2, 3], [4, 5, 6]]
        out = np.zeros((2, 3), "int16")
        client.get_into("f", out)
        assert out.tolist() == [[1, 2, 3], [4, 5, 6]]
    """)


def test_what_they_tell(program: Program):
    program("""
        [device] = client.devices()
        assert "fake" in device.name and device.uuid.startswith("GPU-") and device.index == 0 and device.allocator == "pool"
        assert str(device) == device.uuid and device.segment_bytes <= device.segment_bytes_max
        for place in ["cuda:0", "cuda", 0, device.uuid, device]:
            version = client.put("x", np.ones((2, 3), "float32"), metadata={"a": [1]}, timestamp=7, device=place)
        lease = client.get("x")
        assert (lease.device, lease.device_uuid, lease.shape, lease.dtype) == ("cuda:0", device.uuid, (2, 3), "float32")
        assert (lease.metadata, lease.timestamp, lease.version, lease.name) == ({"a": [1]}, 7, version, "x")
        assert (lease.mode, lease.readonly, lease.valid, lease.early, len(lease), lease.size) == ("read", True, True, False, 2, 6)
        assert "cuda:0" in repr(lease) and lease.ndim == 2 and lease.strides == (3 * lease.itemsize, lease.itemsize)
        assert isinstance(client.get_value("x"), tensorlend.DeviceLease)
        [stat] = client.stat()["devices"]
        assert stat["uuid"] == device.uuid and 0 < stat["bytes_in_use"] <= stat["bytes"] <= stat["bytes_max"]
        assert client.info("x").shape == (2, 3) and [info.name for info in client.list("x")] == ["x"]
        assert client.device_memory("cuda:0")[0] > 0 and client.memory() == (0, 0)
        lease.release()
        assert not lease.valid
        raises(ValueError, "released", lambda: lease.shape)
        with client.create(5, "uint8", device="cuda:0", name="y", metadata=b"m", timestamp=3) as draft:
            assert (draft.shape, draft.dtype, draft.device, draft.device_uuid) == ((5,), "uint8", "cuda:0", device.uuid)
            assert draft.is_open and draft.name == "y" and draft.nbytes == 5 and draft.ptr % 512 == 0
            draft.set_metadata({"b": 2})
            draft.set_timestamp(4)
            draft.copy_from(b"abcde")
        raises(ValueError, "published", lambda: draft.shape)
        assert client.get("y").metadata == {"b": 2} and bytes(client.get("y").to_host()) == b"abcde"
        try:
            with client.create(5, "uint8", device="cuda:0", name="z"):
                raise KeyError
        except KeyError:
            pass
        assert not client.exists("z")
        client.copy("y", "y2"); client.rename("y2", "y3")
        assert bytes(client.get("y3").to_host()) == b"abcde" and client.get("y3").timestamp == 4
        del lease
        for name in ["x", "y", "y3"]:
            client.delete(name)
    """)


def test_the_host_is_told_no(program: Program):
    program("""
        client.put("x", np.arange(3), device="cuda:0")
        lease = client.get("x")
        for look in [lease.numpy, lambda: memoryview(lease), lambda: np.asarray(lease), lambda: bytes(lease)]:
            raises(BufferError, "to_host", look)
        raises(ValueError, "on a device", client.get, "x", mode="cow")
        raises(ValueError, "dataset", client.get_dataset, "x")
        raises(ValueError, "the array is on a device", client.put_dataset, "d", {"x": lease}, device="cpu")
        raises(ValueError, "in host memory", client.put_dataset, "d", {"x": client.create(3)}, device="cuda:0")
        raises(ValueError, "in host memory", client.append, "l", {"x": client.create(3)}, device="cuda:0")
        raises(ValueError, "on a device", client.put, "y", lease, device="cpu")
        raises(ValueError, "on a device", client.put, "y", client.create(3, device="cuda:0"), device="cpu")
        raises(ValueError, "in host memory", client.put, "y", client.create(3), device="cuda:0")
        raises(TypeError, "int64", client.create(3, "float32", device="cuda:0").copy_from, np.arange(3))
        raises(ValueError, "shape", client.create(3, "int64", device="cuda:0").copy_from, np.arange(4))
        raises(ValueError, "needs one", client.create(3, device="cuda:0").publish)
        assert isinstance(client.get("x"), tensorlend.DeviceLease)
        client.put("x", np.arange(3))
        assert isinstance(client.get("x"), tensorlend.Lease) and isinstance(client.get("x", stream=1), tensorlend.Lease)
    """)


def test_devices_that_are_not_there(program: Program):
    program("""
        for place in ["cuda:x", "gpu", "cuda0", object()]:
            raises(ValueError, "cuda:0", client.create, 3, device=place)
        error = raises(tensorlend.DeviceError, "nvidia-smi", client.create, 3, device="cuda:7")
        assert isinstance(error, RuntimeError) and isinstance(error, tensorlend.Error)
        raises(tensorlend.DeviceError, "lends no memory", client.put, "x", np.ones(3), device="GPU-" + "1" * 32)
        raises(tensorlend.LimitError, "", client.create, 1 << 40, device="cuda:0")
        raises(TypeError, "stream", client.create(3, device="cuda:0").record_stream, "fast")
        raises(ValueError, "-3 is no stream: give a stream's handle", client.create(3, device="cuda:0").record_stream, -3)
    """)


def test_without_a_driver(world: World, program: Program):
    program('client.put("kept", np.arange(3), device="cuda:0"); client.put("host", np.arange(3)); client.close()')
    world.run(
        START
        + textwrap.dedent("""
            assert len(client.devices()) == 1 and client.devices()[0].index is None
            assert client.get("host").numpy().sum() == 3
            for work in [lambda: client.get("kept"), lambda: client.create(3, device="cuda:0")]:
                error = raises(tensorlend.DeviceError, "", work)
                assert "driver" in str(error).lower() or "libcuda" in str(error), error
        """),
        LD_LIBRARY_PATH="",
    )


def test_a_daemon_that_lends_none(tmp_path_factory: pytest.TempPathFactory):
    world = World(tmp_path_factory.mktemp("other"), "[cuda]\ndevices = []\n")
    world.start("--allow-fake-cuda")
    try:
        world.run(START + 'assert client.devices() == []\n'
                  'raises(tensorlend.DeviceError, "lends no memory", client.create, 3, device="cuda:0")')
    finally:
        world.stop()


def test_dlpack(program: Program):
    program("""
        import dlpack_structs as dl

        client.put("x", np.arange(6, dtype=np.int16).reshape(2, 3), device="cuda:0")
        lease, draft = client.get("x"), client.create((2, 3), "bfloat16", device="cuda:0")
        assert lease.__dlpack_device__() == draft.__dlpack_device__() == (2, 0)
        for stream in [None, 1, 2, -1]:
            capsule = lease.__dlpack__(stream=stream, max_version=(1, 3))
            seen = dl.look(capsule)
            assert seen.flags == dl.READ_ONLY and seen.dl_tensor.data == lease.ptr
            tensor = seen.dl_tensor
            assert (tensor.device.device_type, tensor.device.device_id, tensor.ndim) == (2, 0, 2)
            assert tensor.shape[:2] == [2, 3] and tensor.strides[:2] == [3, 1] and tensor.byte_offset == 0
            assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (0, 16, 1)
        seen = dl.look(draft.__dlpack__(stream=1, max_version=(1, 0)))
        assert seen.flags == 0 and seen.dl_tensor.data == draft.ptr and seen.dl_tensor.dtype.code == 4
        capsule = draft.__dlpack__()
        assert dl.name(capsule) == b"dltensor" and dl.look(capsule).dl_tensor.data == draft.ptr
        raises(BufferError, "__cuda_array_interface__", lease.__dlpack__)
        raises(ValueError, "stream 0", lease.__dlpack__, stream=0, max_version=(1, 0))
        raises(BufferError, "", lease.__dlpack__, max_version=(1, 0), dl_device=(2, 1))
        raises(BufferError, "clone", lease.__dlpack__, max_version=(1, 0), copy=True)
        raises(BufferError, "copy", lease.__dlpack__, max_version=(1, 0), copy=False, dl_device=(1, 0))
        raises(BufferError, "no elements in host memory", draft.__dlpack__, max_version=(1, 0), dl_device=(1, 0))
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
            assert np.from_dlpack(lease, device="cpu").tolist() == [[0, 1, 2], [3, 4, 5]]
        empty = client.create((0, 4), device="cuda:0")
        assert dl.look(empty.__dlpack__(max_version=(1, 0))).dl_tensor.data is None
        assert empty.__cuda_array_interface__["data"] == (0, False)
        # The lease lasts as long as a capsule does.
        capsule = lease.__dlpack__(max_version=(1, 0))
        at = lease.ptr
        del lease, seen, tensor
        client.delete("x")
        gc.collect()
        assert all(client.create((2, 3), "int16", device="cuda:0").ptr != at for _ in range(50))
    """)


def test_the_array_interface(program: Program):
    program("""
        client.put("x", np.asfortranarray(np.ones((2, 3), "float32")), device="cuda:0")
        lease, draft = client.get("x"), client.create(4, "complex64", device="cuda:0")
        seen = lease.__cuda_array_interface__
        assert seen == {"version": 3, "typestr": "<f4", "shape": (2, 3), "strides": (4, 8), "data": (lease.ptr, True), "stream": None}
        at = draft.__cuda_array_interface__
        assert at["typestr"] == "<c8" and at["data"][1] is False and at["stream"] is None
        assert draft.__cuda_array_interface__["stream"] == 1, "somebody may be at work on it already"
        raises(AttributeError, "", lambda: draft.__array_interface__)

        class Theirs:
            def __init__(self, **more):
                self.__cuda_array_interface__ = {**seen, **more}

        client.put("y", Theirs())
        assert client.get("y").to_host().tolist() == [[1.0] * 3] * 2 and client.get("y").strides == (4, 8)
        client.put("y", Theirs(strides=None, shape=(6,), stream=2, data=(lease.ptr, False), version=2))
        assert client.get("y").shape == (6,)
        raises(ValueError, "mask", client.put, "y", Theirs(mask=lease))
        raises(TypeError, "byte order", client.put, "y", Theirs(typestr=">f4"))
        raises(TypeError, "V2", client.put, "y", Theirs(typestr="<V2"))
        raises(ValueError, "gaps", client.put, "y", Theirs(strides=(8, 16)))
        raises(ValueError, "no device memory", client.put, "y", Theirs(data=(4096, True)))
        raises(ValueError, "device=", client.put, "y", Theirs(shape=(0,), strides=None))
        client.put("y", Theirs(shape=(0,), strides=None), device="cuda:0")
        # Between devices' names: a lease put again is copied on its device.
        client.put("z", lease, metadata={"again": True})
        assert client.get("z").device == "cuda:0" and client.get("z").metadata == {"again": True}
    """)


def test_numba_reads_and_writes_in_place(numba: Program):
    numba("""
        client.put("x", np.arange(12.0).reshape(3, 4), device="cuda:0")
        lease = client.get("x")
        view = cuda.as_cuda_array(lease)
        assert (view.copy_to_host() == np.arange(12.0).reshape(3, 4)).all() and view.gpu_data.owner is lease
        assert (view[1].copy_to_host() == [4, 5, 6, 7]).all()
        with client.create((3, 4), "float32", device="cuda:0", name="y") as draft:
            cuda.as_cuda_array(draft).copy_to_device(np.full((3, 4), 2.5, "float32"))
        assert (client.get("y").to_host() == 2.5).all()
        there = cuda.to_device(np.arange(10, dtype=np.int16))
        client.put("z", there)
        assert client.get("z").dtype == "int16" and client.get("z").to_host().tolist() == list(range(10))
        raises(ValueError, "contiguous", client.put, "z", there[::2])
        client.put("z", there[2:5], device="cuda:0")
        assert client.get("z").to_host().tolist() == [2, 3, 4]
        # The copy is work of a separate stream; the check follows that work.
        stream = cuda.stream()
        later = cuda.to_device(np.ones(1000, np.uint8), stream=stream)
        client.put("s", later)
        assert client.get("s").to_host().sum() == 1000
        draft = client.create(1000, "uint8", device="cuda:0", stream=stream)
        cuda.as_cuda_array(draft, sync=False).copy_to_device(np.full(1000, 3, np.uint8), stream=stream)
        draft.publish("s", stream=stream)
        assert (client.get("s").to_host() == 3).all()
        # The released lease's memory stays while a view of it exists.
        lease.release()
        assert (view.copy_to_host()[0] == [0, 1, 2, 3]).all() and lease.valid
    """)


def test_cuda_core(world: World):
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None:
        pytest.skip("cuda-core is not installed (bindings/python/tests/requirements-device.txt)")
    world.run(START + textwrap.dedent("""
        from cuda.core import Buffer, Device
        card = Device(0); card.set_current()
        stream = card.create_stream()
        draft = client.create(1024, "int32", device="cuda:0")
        Buffer.from_handle(draft.ptr, draft.nbytes).fill(np.int32(9).tobytes(), stream=stream)
        draft.publish("x", stream=stream)
        lease = client.get("x")
        assert (lease.to_host() == 9).all()
        other = card.allocate(4096, stream=stream)
        other.copy_from(Buffer.from_handle(lease.ptr, lease.nbytes), stream=stream)
        lease.record_stream(stream)
        stream.sync()
        class Old:
            cuda_stream = int(stream.handle)
        lease.record_stream(Old())
        lease.record_stream(int(stream.handle))
        lease.wait(stream)
    """))


def test_publishing_waits_for_the_work_and_others_run_on(numba: Program):
    numba("""
        stream = cuda.stream()
        for name, how in [("a", "explicit"), ("b", "shown"), ("c", "context")]:
            draft = client.create(1 << 16, "uint8", device="cuda:0")
            draft.copy_from(np.zeros(1 << 16, "uint8"))
            source = cuda.to_device(np.full(1 << 16, 7, "uint8"))
            cuda.synchronize()
            with Gate() as gate:
                # sync=False: the copy does not wait for earlier work.
                cuda.as_cuda_array(draft, sync=False).copy_to_device(source, stream=stream)
                if how == "explicit":
                    draft.record_stream(stream)
                if how == "shown":
                    draft.__dlpack__(stream=int(stream))
                thread = threading.Thread(target=draft.publish, args=(name,))
                thread.start()
                time.sleep(0.1)  # the interpreter's lock is free meanwhile
                assert thread.is_alive() and not client.exists(name)
                gate.open()
                thread.join(20)
            assert (client.get(name).to_host() == 7).all(), how
    """)


def test_a_lease_outlives_the_work_that_reads_it(numba: Program):
    numba("""
        stream, size = cuda.stream(), 1 << 16
        for how in ["record", "default"]:
            client.put("x", np.full(size, 5, "uint8"), device="cuda:0")
            target = cuda.to_device(np.zeros(size, "uint8"))
            cuda.synchronize()
            lease = client.get("x")
            at = lease.ptr
            with Gate() as gate:
                view = cuda.as_cuda_array(lease)
                target.copy_to_device(view, stream=stream if how == "record" else 0)
                if how == "record":
                    lease.record_stream(stream)
                del view, lease
                gc.collect()
                client.delete("x")
                drafts = [client.create(size, "uint8", device="cuda:0") for _ in range(40)]
                assert all(draft.ptr != at for draft in drafts), "the memory was reused under a copy"
                gate.open()
            cuda.synchronize()
            assert (target.copy_to_host() == 5).all(), how
            del drafts
            # Now the daemon may reuse the memory: the freed slots return.
            def back():
                client.put("other", np.ones(1), device="cuda:0")
                many = [client.create(size, "uint8", device="cuda:0") for _ in range(60)]
                return any(draft.ptr == at for draft in many)
            until(back)
    """)


def test_published_early(numba: Program):
    numba("""
        stream, mine = cuda.stream(), cuda.stream()
        source = cuda.to_device(np.full(1000, 6, "uint8"))
        target = cuda.to_device(np.zeros(1000, "uint8"))
        draft = client.create(1000, "uint8", device="cuda:0")
        draft.copy_from(np.zeros(1000, "uint8"))
        cuda.synchronize()
        with Gate() as gate:
            cuda.as_cuda_array(draft, sync=False).copy_to_device(source, stream=stream)
            draft.publish_early("x", stream)
            lease = client.get("x", stream=mine)  # nobody waits
            assert lease.early
            assert lease.__cuda_array_interface__["stream"] == 1
            target.copy_to_device(cuda.as_cuda_array(lease, sync=False), stream=mine)
            got = []
            thread = threading.Thread(target=lambda: got.append(client.get("x").to_host()))
            thread.start()
            time.sleep(0.1)
            assert thread.is_alive() and not got
            gate.open()
            thread.join(20)
        assert (got[0] == 6).all()
        mine.synchronize()
        assert (target.copy_to_host() == 6).all()
        lease.wait()
        until(lambda: not lease.early)
        raises(ValueError, "early", client.create(3, device="cuda:0", ttl=5).publish_early, "y")
    """)


def test_streams_and_lists(program: Program):
    program("""
        import asyncio

        with client.stream("camera", capacity=4) as camera:
            frames = client.subscribe("camera", start="oldest", pollable=True)
            camera.send(np.arange(4), device="cuda:0", timestamp=5, metadata={"n": 1})
            camera.try_send(np.arange(5), device="cuda:0")
            draft = camera.create(3, "uint8", device="cuda:0")
            draft.copy_from(b"abc")
            camera.send(draft)
            camera.send(np.arange(6))
            first = frames.recv(timeout=10)
            assert (first.timestamp, first.tensor.metadata, first.value.device) == (5, {"n": 1}, "cuda:0")
            raises(BufferError, "to_host", first.numpy)
            raises(TypeError, "one tensor", lambda: first.dataset)
            second = asyncio.run(frames.recv_async(timeout=10))
            assert second.tensor.to_host().tolist() == [0, 1, 2, 3, 4] and first.tensor.to_host().tolist() == [0, 1, 2, 3]
            third = next(frames)
            assert bytes(third.tensor.to_host()) == b"abc" and third.tensor.name == "camera"
            assert frames.recv(timeout=10).numpy().tolist() == list(range(6))
            again = pickle.loads(pickle.dumps(third.tensor))
            assert isinstance(again, tensorlend.DeviceLease) and bytes(again.to_host()) == b"abc"
        for number in range(3):
            client.append("l", np.full(2, number), device="cuda:0")
        client.append("l", np.full(2, 3))
        client.append_names("l", [client.put("n", np.full(2, 4), device="cuda:0") and "n"])
        items = client.get_all("l")
        kinds = [type(item).__name__ for item in items]
        assert kinds == ["DeviceLease"] * 3 + ["Lease", "DeviceLease"], kinds
        assert [int((item.to_host() if kind == "DeviceLease" else item.numpy())[0]) for item, kind in zip(items, kinds)] == [0, 1, 2, 3, 4]
        assert client.get_range("l", 1, 2)[0].to_host().tolist() == [1, 1]
        seen = client.get("n")
        threading.Timer(0.1, lambda: client.put("n", np.full(2, 9), device="cuda:0")).start()
        newer = client.wait_newer("n", seen, timeout=20)
        assert newer.to_host().tolist() == [9, 9] and newer.version != seen.version
        assert client.wait_for("n", timeout=1).version == newer.version
    """)


def test_datasets(program: Program):
    program("""
        draft = client.create(3, "uint8", device="cuda:0")
        draft.copy_from(b"abc")
        points = client.put("points", np.arange(6.0).reshape(2, 3), device="cuda:0", metadata={"unit": "m"}) and client.get("points")
        client.put_dataset("d", {"text": draft, "host": np.arange(4), "points": points}, metadata={"n": 1}, timestamp=9)
        d = client.get_dataset("d")
        assert [type(lease).__name__ for lease in d.values()] == ["DeviceLease", "Lease", "DeviceLease"]
        assert d.keys() == ["text", "host", "points"] == list(d) and len(d) == 3 and "host" in d and "no" not in d
        assert (d.metadata, d.timestamp, d["points"].device, d["points"].name) == ({"n": 1}, 9, "cuda:0", "d")
        assert bytes(d["text"].to_host()) == b"abc" and d["host"].numpy().tolist() == [0, 1, 2, 3]
        assert d["points"].to_host().tolist() == [[0, 1, 2], [3, 4, 5]] and d["points"].version == d.version == client.version("d")
        assert d.get("no") is None and d.get("host").shape == (4,) and {name: lease.shape for name, lease in d.items()}["points"] == (2, 3)
        raises(BufferError, "'text': the tensor is on a device", d.numpy)
        raises(ValueError, '"d/text" is on a device', client.get_dataset, "d", mode="cow")
        text = repr(d)
        assert "'text' uint8 (3,) on GPU-" in text and "'host' int64 (4,)," in text and "83 bytes" in text, text
        assert client.info("d").members["points"][1] == (2, 3) and client.info("d").nbytes == 83
        # All members on the device, or each member in its own memory.
        client.put_dataset("e", {"a": np.ones(2), "b": np.zeros(3)}, device="cuda:0")
        assert [lease.to_host().tolist() for lease in client.get_dataset("e").values()] == [[1, 1], [0, 0, 0]]
        again = pickle.loads(pickle.dumps(d))
        assert bytes(again["text"].to_host()) == b"abc"
        one = pickle.loads(pickle.dumps(d["points"]))
        assert isinstance(one, tensorlend.DeviceLease) and one.to_host()[1, 2] == 5
        client.put_dataset("copy", d)
        assert isinstance(client.get_dataset("copy")["points"], tensorlend.DeviceLease)
        for number in range(3):
            client.append("datasets", {"x": np.full(2, number), "y": np.full(1, number)}, device="cuda:0")
        client.append("datasets", {"x": np.full(2, 3), "y": d["text"]})
        items = client.get_all("datasets")
        assert [type(item["x"]).__name__ for item in items] == ["DeviceLease"] * 3 + ["Lease"]
        assert [int(item["x"].to_host()[0]) for item in items[:3]] == [0, 1, 2] and items[3]["x"][0] == 3
        item = pickle.loads(pickle.dumps(items[2]))
        assert item["y"].to_host().tolist() == [2] and item.name != "datasets"
        with client.stream("frames", capacity=4) as stream:
            frames = client.subscribe("frames", start="oldest")
            stream.send({"image": np.arange(4), "points": points})
            message = frames.recv(timeout=10).dataset
            assert message["points"].to_host()[1, 1] == 4 and message["image"][3] == 3
    """)


def test_a_dataset_outlives_the_work_that_reads_a_member(program: Program):
    program("""
        cuda = ctypes.CDLL("libcuda.so.1")
        client.put_dataset("d", {"x": np.ones(100_000, np.uint8), "y": np.zeros(1)}, device="cuda:0")
        out = client.create(100_000, "uint8", device="cuda:0")
        d = client.get_dataset("d")
        lease = d["x"]
        source, to = ctypes.c_uint64(lease.ptr), ctypes.c_uint64(out.ptr)
        context = ctypes.c_void_p()
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
        side = ctypes.c_void_p()
        assert cuda.cuStreamCreate(ctypes.byref(side), 1) == 0
        with Gate() as gate:
            assert cuda.cuMemcpyDtoDAsync_v2(to, source, ctypes.c_size_t(100_000), side) == 0
            lease.record_stream(side.value)
            out.record_stream(side.value)
            del lease, d
            client.delete("d")
            drafts = [client.create(100_000, "uint8", device="cuda:0") for _ in range(40)]
            assert all(draft.ptr != source.value for draft in drafts), "the memory was reused under a copy"
            gate.open()
        out.publish("out")
        assert client.get("out").to_host().tolist() == [1] * 100_000
    """)


CHILD = START + textwrap.dedent("""
    lease = pickle.loads(sys.stdin.buffer.read())
    assert lease.to_host().tolist() == [1, 2, 3], lease
    name = lease.name
    lease.release()
    client.put("answer", np.array([len(name)]), device="cuda:0")
""")


def test_between_processes(world: World, program: Program):
    source = program("""
        client.put("there", np.array([1, 2, 3]), device="cuda:0")
        sys.stdout.write(pickle.dumps(client.get("there"), 0).decode("latin1"))
    """)
    # A published value outlives its process.
    child = world.begin(CHILD)
    out, err = child.communicate(source, timeout=120)
    assert child.returncode == 0, err
    program("""
        assert client.get("answer").to_host().tolist() == [5]
        ref = client.share(client.get("there"))
        assert ref.shape == (3,)
        assert pickle.loads(pickle.dumps(ref)).take().to_host().tolist() == [1, 2, 3]
        lease = client.get("there")
        sent = pickle.dumps(lease)
        assert len(sent) < 1000, "a reference"
        client.put("there", np.zeros(3), device="cuda:0")
        raises(KeyError, "overwritten", pickle.loads, sent)
    """)


def test_a_reader_in_another_process(world: World):
    reader = world.begin(START + textwrap.dedent("""
        print("ready", flush=True)
        seen = None
        for _ in range(20):
            lease = client.wait_newer("turn", seen, timeout=60)
            values = lease.to_host()
            assert (values == values[0]).all(), "torn"
            seen = lease.version
            client.put("back", lease)
            if values[0] == 99:
                break
        else:
            raise AssertionError("it never came to an end")
    """))
    assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
    world.run(START + textwrap.dedent("""
        for number in [1, 2, 3, 99]:
            client.put("turn", np.full(100_000, number, "int32"), device="cuda:0")
            until(lambda: client.exists("back") and client.get("back").to_host()[0] == number, 60)
    """))
    finish(reader)


def test_memory_of_others_is_read_only(world: World, program: Program):
    program('client.put("x", np.arange(3), device="cuda:0")')
    # The fake device's memory is host memory, so a store by the CPU meets the same page protection as a kernel's store
    # on a card.
    writer = world.begin(START + 'ctypes.memset(client.get("x").ptr, 1, 8)')
    writer.communicate(timeout=60)
    assert writer.returncode == -signal.SIGSEGV
    program('assert client.get("x").to_host().tolist() == [0, 1, 2]')


def test_forked_children_are_told(world: World, program: Program):
    program("""
        from children import in_child

        client.put("x", np.arange(3), device="cuda:0")
        client.put("host", np.arange(3))
        lease, draft = client.get("x"), client.create(3, device="cuda:0")

        def child():
            for use in [lambda: lease.shape, lease.to_host, lambda: lease.ptr, lambda: draft.shape, lambda: draft.publish("y"),
                        lambda: lease.__cuda_array_interface__]:
                raises(tensorlend.Error, "spawn", use)
            assert not lease.valid
            assert client.get("host").numpy().sum() == 3  # the client connects anew
            raises(tensorlend.Error, "", client.get, "x")
            raises(tensorlend.Error, "", client.put, "y", np.ones(3), device="cuda:0")
            return True

        assert in_child(child)
        assert lease.to_host().tolist() == [0, 1, 2]
        draft.copy_from(np.ones(3))
        draft.publish("y")
    """)


def test_spawned_workers(world: World, tmp_path):
    text = textwrap.dedent("""
        import multiprocessing, numpy as np, tensorlend

        def work(lease, queue):
            queue.put(int(lease.to_host().sum()))

        if __name__ == "__main__":
            client = tensorlend.connect()
            client.put("x", np.arange(5), device="cuda:0")
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=work, args=(client.get("x"), queue))
            process.start()
            assert queue.get(timeout=60) == 10
            process.join()
    """)
    script = tmp_path / "spawned.py"
    script.write_text(text)
    world.run(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")


def test_threads(program: Program):
    program("""
        failed = []
        def work(number):
            try:
                for turn in range(20):
                    array = np.full(500, number * 100 + turn)
                    client.put(f"t/{number}", array, device="cuda:0")
                    lease = client.get(f"t/{number}")
                    lease.__cuda_array_interface__
                    assert (lease.to_host() == array).all()
                    draft = client.create(500, "int64", device="cuda:0")
                    draft.__dlpack__(stream=2)
                    draft.copy_from(array + 1)
                    draft.publish(f"t/{number}")
                    assert (client.get(f"t/{number}").to_host() == array + 1).all()
            except BaseException as error:
                failed.append(error)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not failed, failed
    """)


def test_views_of_what_was_published(program: Program):
    program("""
        import dlpack_structs as dl

        draft = client.create(1000, "uint8", device="cuda:0")
        draft.copy_from(np.full(1000, 4, "uint8"))
        at, capsule = draft.ptr, draft.__dlpack__(max_version=(1, 0))
        draft.publish("x")
        client.delete("x")
        many = [client.create(1000, "uint8", device="cuda:0") for _ in range(100)]
        assert all(other.ptr != at for other in many), "somebody looks at it"
        del capsule, many
        def back():
            client.put("other", np.ones(1), device="cuda:0")  # what was freed is looked for when something new is put
            many = [client.create(1000, "uint8", device="cuda:0") for _ in range(60)]
            return any(other.ptr == at for other in many)
        until(back)
        draft = client.create(1000, "uint8", device="cuda:0")
        capsule = draft.__dlpack__(max_version=(1, 0))
        draft.drop()
        assert not draft.is_open and dl.look(capsule).dl_tensor.data
        del capsule
        for _ in range(500):
            client.put("x", np.ones(1000), device="cuda:0")
            client.get("x").__cuda_array_interface__
        assert client.device_memory(0)[0] < 1_000_000
    """)


@pytest.mark.parametrize("block", blocks("gpu"))
def test_the_manual(block: str, world: World):
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed (bindings/python/tests/requirements-device.txt)")
    world.run(block)


def test_older_handles(world: World):
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        pytest.skip("cuda-bindings is not installed (bindings/python/tests/requirements-device.txt)")
    maker = world.begin(START + textwrap.dedent("""
        client.put("x", np.arange(8, dtype=np.uint8), device="cuda:0")
        with client.get("x").legacy_ipc_handle() as export:
            assert len(export.handle) == 64 and export.nbytes >= 8 and export.ptr
            print(export.handle.hex(), flush=True)
            sys.stdin.readline()
        raises(ValueError, "closed", lambda: export.ptr)
    """))
    assert maker.stdout is not None
    handle = maker.stdout.readline().strip()
    assert handle, maker.communicate()[1]
    opener = textwrap.dedent("""
        import ctypes, sys
        import numpy as np
        from cuda.bindings import driver
        def ok(answer):
            assert int(answer[0]) == 0, answer
            return answer[1] if len(answer) > 1 else None
        ok(driver.cuInit(0))
        context = ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))
        ok(driver.cuCtxSetCurrent(context))
        handle = driver.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), bytes.fromhex(sys.argv[1]), 64)
        at = ok(driver.cuIpcOpenMemHandle(handle, 1))
        out = np.zeros(8, np.uint8)
        ok(driver.cuMemcpyDtoH(out.ctypes.data, at, 8))
        assert out.tolist() == list(range(8)), out
        ok(driver.cuIpcCloseMemHandle(at))
    """)
    try:
        world.run(opener, handle)
    finally:
        assert maker.stdin is not None
        finish_input(maker)


def finish_input(program: "subprocess.Popen[str]") -> None:
    out, err = program.communicate("\n", timeout=60)
    assert program.returncode == 0, err




def test_batches(program):
    """Leases where they are; the host's libraries do not look."""
    program(
        """
        client.put("device", np.arange(3.0), device="cuda:0")
        client.put("host", np.arange(3.0))
        lease, other, (again, _) = client.batches(["device", "host", ("device", "host")])
        assert isinstance(lease, tensorlend.DeviceLease) and isinstance(other, tensorlend.Lease)
        assert lease.to_host().tolist() == again.to_host().tolist() == other.numpy().tolist() == [0, 1, 2]
        batches = client.batches(["host", "device", "host"], "numpy")
        assert next(batches).tolist() == [0, 1, 2]
        raises(BufferError, "on a device", next, batches)
        assert next(batches).tolist() == [0, 1, 2]
        raises(tensorlend.ArgumentError, "copy the tensor", next, client.batches(["device"], mode="cow"))
        raises(tensorlend.ArgumentError, "on a device", client.get_dataset, "device")
        raises(tensorlend.ArgumentError, "tensor", client.get_dataset, "host")
        """
    )


def test_a_host_tensor_is_copied_to_the_device(program):
    """Queued in a stream; the lease lasts as long as the copy."""
    program(
        """
        numbers = np.arange(100_000, dtype=np.float32).reshape(100, 1000)
        client.put("x", numbers.T, metadata={"unit": "m"})
        lease = client.get("x")
        lease.page_lock("cuda:0")
        with Gate() as gate:
            copy = lease.to("cuda:0")
            assert isinstance(copy, tensorlend.DeviceDraft) and copy.shape == (1000, 100)
            del lease
            client.delete("x")
            for _ in range(20):
                client.put("x", np.full((1000, 100), -1, np.float32))
            gate.open()
        copy.publish("y")
        assert (client.get("y").to_host() == numbers.T).all()
        assert client.get("y").metadata == {"unit": "m"}
        raises(ValueError, "private copy", client.get("x", mode="cow").to, "cuda:0")
        raises(ValueError, "is no device", client.get("x").to, "cpu")
        raises(tensorlend.DeviceError, "no", client.get("x").to, "cuda:7")
        client.put_dataset("frame", {"a": np.zeros(3), "b": np.arange(4.0)})
        client.get_dataset("frame")["b"].to("cuda:0").publish("z")
        assert client.get("z").to_host().tolist() == [0, 1, 2, 3]
        """
    )


def test_blocks_of_a_kv_cache_are_in_locked_pages(tmp_path: pathlib.Path) -> None:
    """With `pool.page_lock`: those that an engine with a device saves, and those of another engine that it loads."""
    world = World(tmp_path, CONFIG + "[pool]\npage_lock = true\n")
    store = """
from tensorlend.kvcache import BlockStore, Identity

store = BlockStore(client, Identity("m", "float16", 16), bytes_max=1 << 26)
first, second = "0" * 32, "1" * 32
"""
    world.start()
    try:
        world.run(START + store + "assert store.save(first, 100_000, lambda into: into.fill(7))")
        # A worker of vLLM has a context before it opens its store.
        world.run(
            START
            + """
client.put("x", np.zeros(4, np.uint8), device="cuda:0")
cuda, context, place = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0

def is_locked(array):
    at = ctypes.c_void_p(array.__array_interface__["data"][0])
    return cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(place), at, 0) == 0
"""
            + store
            + """
assert not is_locked(np.zeros(100_000, np.uint8))
with store.load(first, 100_000) as lease:
    assert is_locked(lease.numpy()) and lease.numpy().sum() == 700_000
locked = []
assert store.save(second, 100_000, lambda into: locked.append(is_locked(into)))
assert locked == [True]
"""
        )
    finally:
        world.stop()


def test_a_lease_lasts_until_a_recorded_stream_has_passed(program):
    program(
        """
        client.put("x", np.ones(100_000, np.uint8))
        lease = client.get("x")
        lease.page_lock("cuda:0", stream=1)
        address = lease.__array_interface__["data"][0]
        client.put("out", np.zeros(100_000, np.uint8), device="cuda:0")
        cuda = ctypes.CDLL("libcuda.so.1")
        draft = client.create(100_000, "uint8", device="cuda:0")
        context = ctypes.c_void_p()
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
        with Gate() as gate:
            # Like another library: the package does not see the copy.
            to, source = ctypes.c_uint64(draft.ptr), ctypes.c_void_p(address)
            assert cuda.cuMemcpyHtoDAsync_v2(to, source, ctypes.c_size_t(100_000), ctypes.c_void_p(1)) == 0
            del lease
            client.delete("x")
            for _ in range(20):
                client.put("x", np.full(100_000, 9, np.uint8))
            gate.open()
        draft.publish("y")
        assert client.get("y").to_host().tolist() == [1] * 100_000
        """
    )


def test_the_loaders_tensors_lie_in_locked_pages(program):
    """What SharedLoader(pin_memory=True) does with a leased tensor; the stand-in runs no torch on the device."""
    pytest.importorskip("torch", reason="torch is not installed")
    program(
        """
        import torch
        from tensorlend.loader.torch_kit import TorchKit

        client.put("warm", np.zeros(1), device="cuda:0")
        client.put("x", np.arange(100_000, dtype=np.float32))
        torch.cuda.current_stream = lambda device: 1
        tensor = TorchKit(0).show("t")(client.get("x"))
        cuda, flags = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint()
        assert cuda.cuMemHostGetFlags(ctypes.byref(flags), ctypes.c_void_p(tensor.data_ptr())) == 0
        assert flags.value & 8, "read-only for the device"
        assert float(tensor.sum()) == 4999950000.0 or float(tensor.double().sum()) == 4999950000.0
        assert TorchKit(0).plain is False and TorchKit().plain
        """
    )


def test_a_copy_to_the_host_goes_into_a_draft(program):
    program(
        """
        numbers = np.arange(1_000_000, dtype=np.float32).reshape(1000, 1000)
        client.put("x", numbers, device="cuda:0")
        lease = client.get("x")
        assert (lease.to_host() == numbers).all()
        with client.create((1000, 1000), "float32", name="host") as draft:
            array = lease.to_host(draft)
            assert array.ctypes.data == draft.array.ctypes.data
        assert (client.get("host").numpy() == numbers).all()
        raises(tensorlend.DTypeError, "float64", lease.to_host, client.create((1000, 1000), "float64"))
        """
    )


def test_an_array_that_claims_a_buffer(program):
    """Arrays of CuPy 14 say that they have a buffer, and raise an error when they are asked for it."""
    program("""
        client.put("x", np.arange(6, dtype=np.float32), device="cuda:0")
        lease = client.get("x")
        class Claims(ctypes.c_float * 6):
            __cuda_array_interface__ = property(lambda self: lease.__cuda_array_interface__)
        client.put("y", Claims())
        assert client.get("y").device == "cuda:0" and client.get("y").to_host().tolist() == [0, 1, 2, 3, 4, 5]
    """)
