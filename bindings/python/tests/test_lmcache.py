"""The plugin of LMCache, in LMCache's own backend for remote storage."""

import asyncio
import threading

import pytest

import tensorlend
from tensorlend.kvcache import summary

lmcache = pytest.importorskip("lmcache", reason="LMCache is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

LAYERS, TOKENS, HEADS, SIZE = 2, 16, 2, 8


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def opened(broker, loop):
    """Opens LMCache's backend with a pool of its own, as an engine does."""
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
    from lmcache.v1.storage_backend.remote_backend import RemoteBackend

    backends = []

    def open_one(worker=0, **extra):
        prefix = "remote_storage_plugin.tensorlend."
        options = {"module_path": "tensorlend.lmcache", "class_name": "TensorlendConnector", "address": str(broker.address), **extra}
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=TOKENS,
            local_cpu=False,
            max_local_cpu_size=0.05,
            remote_storage_plugins=["tensorlend"],
            extra_config={prefix + name: value for name, value in options.items()},
        )
        shape = (LAYERS, 2, TOKENS, HEADS, SIZE)
        metadata = LMCacheMetadata("tiny", 1, 1, worker, worker, torch.float32, shape, chunk_size=TOKENS)
        local = LocalCPUBackend(config, metadata, dst_device="cpu")
        backends.append(RemoteBackend(config, metadata, loop, local, dst_device="cpu", plugin_name="tensorlend"))
        return backends[-1], local

    yield open_one
    for backend in backends:
        backend.close()


def key(number, worker=0):
    from lmcache.utils import CacheEngineKey

    return CacheEngineKey("tiny", 1, worker, number, torch.float32)


def chunk(local, number, tokens=TOKENS):
    from lmcache.v1.memory_management import MemoryFormat

    shape = torch.Size([2, LAYERS, tokens, HEADS * SIZE])
    memory = local.allocate(shape, torch.float32, MemoryFormat.KV_2LTD)
    memory.tensor.copy_(torch.arange(shape.numel()).view(shape) + number)
    return memory


def put(backend, local, number, **options):
    memory = chunk(local, number, **options)
    backend.submit_put_task(key(number), memory).result()
    memory.ref_count_down()


def test_an_engine_loads_the_chunks_of_another_one(opened, client):
    first, pool = opened()
    second, _ = opened()
    assert not second.contains(key(1)) and second.get_blocking(key(1)) is None
    put(first, pool, 1)
    put(first, pool, 2, tokens=5)
    first.close()
    assert second.contains(key(1)) and second.contains(key(2)) and not second.contains(key(3))
    assert second.batched_contains([key(1), key(2), key(3)]) == 2
    for number, tokens in ((1, TOKENS), (2, 5)):
        found = second.get_blocking(key(number))
        assert found.tensor.shape == (2, LAYERS, tokens, HEADS * SIZE)
        assert torch.equal(found.tensor.flatten(), torch.arange(found.tensor.numel()) + float(number))
        found.ref_count_down()
    assert second.remove(key(1)) and not second.contains(key(1))
    counters = summary(client).counters
    assert counters.saved_blocks == 2


def test_ranks_and_weights_share_nothing(opened):
    first, pool = opened()
    put(first, pool, 1)
    assert first.contains(key(1))
    for backend, its_key in ((opened(worker=1)[0], key(1, worker=1)), (opened(weights_version="2")[0], key(1))):
        assert not backend.contains(its_key)


def test_wrong_values_are_misses(opened, client):
    first, pool = opened()
    put(first, pool, 1)
    (name,) = client.names("kv/*/*")
    for wrong in (b"", b"short", bytes(1000), b"\xff" * 1000):
        client.put(name, bytearray(wrong))
        assert first.get_blocking(key(1)) is None


def test_evictions_keep_the_limit(opened, client):
    nbytes = 2 * LAYERS * TOKENS * HEADS * SIZE * 4 + 64
    first, pool = opened(bytes_max=10 * nbytes)
    for number in range(30):
        put(first, pool, number)
    assert 0 < sum(info.nbytes for info in client.list("kv/*/*")) <= 10 * nbytes
    assert first.contains(key(29)) and not first.contains(key(0))


def test_without_a_daemon_an_engine_goes_on(opened, broker):
    first, pool = opened()
    put(first, pool, 1)
    broker.close()
    with pytest.raises(tensorlend.DisconnectedError):
        tensorlend.connect(broker.address)
    put(first, pool, 2)
    assert not first.contains(key(100)) and first.get_blocking(key(100)) is None
