"""cuda.core and numba.cuda on the fake driver. Run with LD_LIBRARY_PATH set as README.md says; `-q` for less text."""

import ctypes
import multiprocessing
import pathlib
import sys

import numpy as np
from cuda.core import (
    Buffer,
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    EventOptions,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    ObjectCode,
    VirtualMemoryResource,
    launch,
)

KERNELS = pathlib.Path(__file__).parent.parent / "kernels.ptx"


def device():
    device = Device(0)
    device.set_current()
    assert "fake" in device.name, f"not the fake driver, but {device.name}"
    return device


def pinned(count):
    buffer = LegacyPinnedMemoryResource().allocate(count * 4)
    return buffer, np.from_dlpack(buffer).view(np.int32)


def buffers():
    card = device()
    stream = card.create_stream()
    there = card.allocate(4096, stream=stream)
    host, numbers = pinned(1024)
    numbers[:] = np.arange(1024)
    there.copy_from(host, stream=stream)
    back, seen = pinned(1024)
    there.copy_to(back, stream=stream)
    stream.sync()
    assert (seen == numbers).all()
    # A view of memory that another object owns, like a lease.
    view = Buffer.from_handle(int(there.handle), 4096)
    assert view.is_device_accessible and not view.is_host_accessible
    assert view.__dlpack_device__()[1] == 0
    view.fill(np.int32(5).tobytes(), stream=stream)
    there.copy_to(back, stream=stream)
    stream.sync()
    assert (seen == 5).all()


def events():
    card = device()
    one, two = card.create_stream(), card.create_stream()
    event = one.record()
    two.wait(event)
    two.sync()
    event.sync()
    assert event.is_done
    options = EventOptions(timing_enabled=True)
    start, end = one.record(options=options), one.record(options=options)
    one.sync()
    assert end - start >= 0


def virtual_memory():
    memory = VirtualMemoryResource(device()).allocate(1 << 20)
    assert memory.size == 2 << 20
    memory.close()


def kernels():
    card = device()
    stream = card.create_stream()
    there = card.allocate(4096, stream=stream)
    kernel = ObjectCode.from_ptx(KERNELS.read_bytes()).get_kernel("tl_fill_u32")
    launch(stream, LaunchConfig(grid=4, block=64), kernel, there, np.uint64(1024), np.uint32(1234))
    back, seen = pinned(1024)
    there.copy_to(back, stream=stream)
    stream.sync()
    assert (seen == 1234).all()


def _other(buffer, answers):
    card = device()
    stream = card.create_stream()
    back, seen = pinned(1024)
    buffer.copy_to(back, stream=stream)
    buffer.fill(7, stream=stream)
    stream.sync()
    buffer.close(stream)
    answers.put(int(seen.sum()))


def between_processes():
    card = device()
    stream = card.create_stream()
    resource = DeviceMemoryResource(card, options=DeviceMemoryResourceOptions(ipc_enabled=True, max_size=1 << 24))
    there = resource.allocate(4096, stream=stream)
    there.fill(np.int32(3).tobytes(), stream=stream)
    stream.sync()
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_other, args=(there, answers))
    process.start()
    assert answers.get(timeout=60) == 3 * 1024
    process.join()
    assert process.exitcode == 0
    back, seen = pinned(1024)
    there.copy_to(back, stream=stream)
    stream.sync()
    assert (seen.view(np.uint8) == 7).all()


def numba_arrays():
    from numba import cuda

    numbers = np.arange(1000, dtype=np.float32)
    there = cuda.to_device(numbers)
    assert (there.copy_to_host() == numbers).all()
    assert cuda.device_array((3, 4), np.int16).copy_to_host().shape == (3, 4)

    class Lease:
        __cuda_array_interface__ = there.__cuda_array_interface__

    view = cuda.as_cuda_array(Lease())
    assert (view[10:20].copy_to_host() == numbers[10:20]).all()
    stream, event = cuda.stream(), cuda.event()
    again = cuda.to_device(numbers * 2, stream=stream)
    event.record(stream)
    event.synchronize()
    assert event.query()
    back = again.copy_to_host(stream=stream)
    stream.synchronize()
    assert (back == numbers * 2).all()
    with cuda.pinned(numbers):
        cuda.to_device(numbers, stream=stream)
        stream.synchronize()
    there.copy_to_device(numbers * 3)
    assert (view.copy_to_host() == numbers * 3).all()


def handles_between_processes():
    from cuda.bindings import driver
    from numba import cuda

    there = cuda.to_device(np.arange(100, dtype=np.int32))
    code, handle = driver.cuIpcGetMemHandle(there.__cuda_array_interface__["data"][0])
    assert code == driver.CUresult.CUDA_SUCCESS
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_open, args=(ctypes.string_at(handle.getPtr(), 64), answers))
    process.start()
    assert answers.get(timeout=60) == 4950
    process.join()
    assert process.exitcode == 0


def _open(ticket, answers):
    from cuda.bindings import driver
    from numba import cuda

    cuda.current_context()
    handle = driver.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), ticket, 64)
    code, address = driver.cuIpcOpenMemHandle(handle, 1)
    assert code == driver.CUresult.CUDA_SUCCESS

    class Opened:
        __cuda_array_interface__ = {
            "shape": (100,),
            "typestr": "<i4",
            "data": (int(address), True),
            "version": 3,
        }

    answers.put(int(cuda.as_cuda_array(Opened()).copy_to_host().sum()))
    assert driver.cuIpcCloseMemHandle(address)[0] == driver.CUresult.CUDA_SUCCESS


def numba_cleans_up():
    from numba import cuda

    there, host = cuda.to_device(np.arange(5)), cuda.pinned_array(5)
    del there, host
    # Must be the last test: afterwards this process has no context.
    cuda.close()


TESTS = [
    buffers,
    events,
    virtual_memory,
    kernels,
    between_processes,
    numba_arrays,
    handles_between_processes,
    numba_cleans_up,
]

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    for test in TESTS:
        test()
        if "-q" not in sys.argv:
            print(f"{test.__name__}: ok")
