"""Blocks of other nodes: two brokers with a gateway each, kills in the middle of a fetch, and nodes that hang."""

import threading

import gateways
import numpy as np
import pytest
from kv_engine import prompt
from stored_daemon import StoredDaemon
from test_vllm_plan import configuration
from waiting import eventually

import tensorlend
from tensorlend._vllm import peers as peers_module
from tensorlend._vllm.options import Options, block_bytes
from tensorlend._vllm.pace import Pace
from tensorlend._vllm.peers import AHEAD_MAX, PEERS_MAX, PREFIXES_MAX, Peers
from tensorlend.kvcache import BlockStore, Identity, summary
from tensorlend.kvcache.pause import Pause

SIZE, NBYTES = 16, 256 << 10
IDENTITY = Identity("m", "float32", SIZE)
KEYS = IDENTITY.keys(prompt(1, 120 * SIZE))
#: A timeout that no test reaches.
FOREVER = 1e6


def filled(key):
    """The bytes of a block, all of which depend on its key."""
    return np.random.default_rng(int(key, 16)).integers(0, 256, NBYTES, np.uint8)


def save(client, keys, identity=IDENTITY):
    store = BlockStore(client, identity, bytes_max=1 << 30)
    for depth, key in enumerate(keys):
        assert store.save(key, NBYTES, lambda into, key=key: np.copyto(into, filled(key)), depth=depth)
    return store


def store_of(client, bytes_max=1 << 30):
    return BlockStore(client, IDENTITY, bytes_max=bytes_max)


def opened(client, names=("there",), bytes_max=1 << 30):
    return Peers(client, [store_of(client, bytes_max)], names, NBYTES)


def fetched(peers, request, keys):
    """Waits until no request needs to wait for the blocks."""
    eventually("the end of the fetch", lambda: not peers.is_coming(request, keys, 0, FOREVER))


def blocks(client):
    """The number of blocks on this node, all of which are as they were saved."""
    infos = client.list("kv/*/*")
    for info in infos:
        with client.get(info.name) as lease:
            assert lease.shape == (NBYTES,) and np.array_equal(lease.numpy(), filled(info.name.split("/")[-1]))
    return len(infos)


@pytest.mark.parametrize("victim", ["gateway", "daemon", "own gateway"])
def test_a_kill_during_a_fetch_leaves_whole_blocks_and_the_next_fetch_goes_on(tmp_path, victim):
    daemon = StoredDaemon(tmp_path)
    try:
        with gateways.two(tmp_path, str(daemon.socket), chunk_bytes='"32KiB"') as (here, there):
            save(there.client, KEYS)
            peers = opened(here.client)
            assert peers.is_coming("r", KEYS, 0, FOREVER)
            eventually("some blocks", lambda: len(here.client.names("kv/*/*")) >= 3)
            if victim == "daemon":
                daemon.kill()
            else:
                (there if victim == "gateway" else here).end()
            if victim == "own gateway":
                # A question waits for the next gateway.
                here.start()
            fetched(peers, "r", KEYS)
            assert 3 <= blocks(here.client) <= len(KEYS)
            if victim == "daemon":
                daemon.start()
            elif victim == "gateway":
                there.start()
            here.sees("there", True)
            number = 0

            def complete():
                nonlocal number
                number += 1
                for pause in peers._pauses.values():
                    pause.__init__()
                fetched(peers, f"again {number}", KEYS)
                return blocks(here.client) == len(KEYS)

            eventually("the rest", complete)
            peers.close()
    finally:
        daemon.close()


@pytest.fixture
def long_pauses(monkeypatch):
    """Pauses that do not end in a test."""
    monkeypatch.setattr("tensorlend.kvcache.pause.RETRY_S", FOREVER)


def test_a_node_that_hangs_ends_the_wait_and_is_left_alone(tmp_path, long_pauses):
    with gateways.two(tmp_path) as (here, there):
        save(there.client, KEYS[:5])
        peers = opened(here.client)
        with there.stopped():
            while peers.is_coming("r", KEYS[:5], 0, 1, may_poll=True):
                pass
            eventually("the pause", lambda: not peers._usable())
            assert blocks(here.client) == 0
            assert not peers.is_coming("other", KEYS[3:5], 3, FOREVER), "another prompt does not wait at all"
        peers.close()


def test_values_that_are_no_blocks_are_not_lent(tmp_path):
    with gateways.two(tmp_path) as (here, there):
        store = save(there.client, KEYS[:2])
        there.client.put(store.name(KEYS[2]), np.zeros(NBYTES - 1, np.uint8))
        there.client.put(store.name(KEYS[3]), np.zeros(NBYTES, np.uint8))
        peers = opened(here.client)
        fetched(peers, "short", KEYS[:4])
        assert blocks(here.client) == 2
        there.client.put_dataset(store.name(KEYS[2]), {"x": np.zeros(NBYTES, np.uint8)})
        fetched(peers, "dataset", KEYS[2:4])
        assert blocks(here.client) == 2
        peers.close()


class Gateway:
    """Stands for a client. Each question waits for its release."""

    def __init__(self, client):
        self.client, self.lock = client, threading.Lock()
        self.asked, self.now, self.most = [], 0, 0
        self.released = threading.Semaphore(0)

    def answered(self):
        with self.lock:
            return len(self.asked) - self.now

    def get_value(self, name):
        with self.lock:
            self.asked.append(name)
            self.now += 1
            self.most = max(self.most, self.now)
        self.released.acquire()
        with self.lock:
            self.now -= 1
        node, _, local = name.partition("/")
        if node != "c":
            raise tensorlend.NotFoundError(name)
        return self.client.get_value(local)


def test_blocks_ahead_prefixes_and_nodes_are_bounded(broker, client, monkeypatch):
    with tensorlend.embedded() as other, other.connect() as far:
        save(far, KEYS[:40])
        gateway = Gateway(far)
        peers = Peers(gateway, [store_of(client)], ["a", "b", "c"], NBYTES)
        assert peers.is_coming("r", KEYS[:40], 0, FOREVER)
        assert peers.is_coming("joins", KEYS[1:50], 1, FOREVER), "a part of the prefix is being fetched"
        prefixes = [IDENTITY.keys(prompt(seed, SIZE)) for seed in range(10, 10 + PREFIXES_MAX)]
        assert [peers.is_coming(str(number), keys, 0, FOREVER) for number, keys in enumerate(prefixes)] == [True] * (PREFIXES_MAX - 1) + [False]
        eventually("the first question", lambda: gateway.asked)
        # The first two nodes get one question each.
        for number in range(3):
            eventually("a question", lambda number=number: len(gateway.asked) == number + 1)
            assert gateway.now == 1
            gateway.released.release()
        eventually("the questions ahead", lambda: gateway.now == AHEAD_MAX)
        assert [name.split("/")[0] for name in gateway.asked[:3]] == ["a", "b", "c"]
        gateway.released.release(1000)
        fetched(peers, "r", KEYS)
        fetched(peers, "joins", KEYS)
        assert gateway.most == AHEAD_MAX and blocks(client) == 40
        peers.close()


def test_large_blocks_are_fetched_one_by_one(client, monkeypatch):
    monkeypatch.setattr(peers_module, "AHEAD_BYTES", 3 * NBYTES)
    assert opened(client)._ahead == 3
    assert Peers(client, [store_of(client)], ["a"], 10 * NBYTES)._ahead == 1


def test_a_fetch_ends_with_its_last_request(client):
    before = threading.enumerate()
    with tensorlend.embedded() as other, other.connect() as far:
        save(far, KEYS[:20])
        gateway = Gateway(far)
        peers = Peers(gateway, [store_of(client)], ["c"], NBYTES)
        assert peers.is_coming("r", KEYS[:20], 0, FOREVER)
        gateway.released.release(5)
        # Five of the questions, not always the first five
        eventually("the first blocks", lambda: gateway.answered() == 5 and client.names("kv/*/*"))
        started = [one for one in threading.enumerate() if one not in before]
        # The time is over.
        fetch, _ = peers._waits["r"]
        peers._waits["r"], fetch.until = (fetch, 0), 0
        assert not peers.is_coming("r", KEYS[:20], 0, FOREVER)
        gateway.released.release(1000)
        eventually("the end", fetch.done.is_set)
        assert blocks(client) <= 6 and peers._usable(), "the node has answered each question at once"
        eventually("the end of leases that came too late", lambda: far.leased() == 0)
        peers.close()
        eventually("the end of all threads", lambda: not [one for one in threading.enumerate() if one.name == "tensorlend peers" and one in started])


def test_a_short_wait_does_not_pause_a_node(client):
    with tensorlend.embedded() as other, other.connect() as far:
        save(far, KEYS[:20])
        gateway = Gateway(far)
        peers = Peers(gateway, [store_of(client)], ["c"], NBYTES)
        assert not peers.is_coming("tiny", KEYS[:1], 0, 0.0005), "not worth a question"
        assert peers.is_coming("r", KEYS[:1], 0, 0.05)
        fetch, _ = peers._waits["r"]
        eventually("the end of the wait", fetch.done.is_set)
        assert peers._usable()
        gateway.released.release(1000)
        fetched(peers, "long", KEYS[:20])
        assert blocks(client) == 20
        peers.close()


def test_bytes_of_fetched_blocks_have_the_limit_of_all(tmp_path):
    with gateways.two(tmp_path, cache_bytes='"2MiB"', window_bytes='"1MiB"', windows_bytes='"1MiB"', chunk_bytes='"128KiB"') as (here, there):
        save(there.client, KEYS)
        limit = 10 * NBYTES
        peers = opened(here.client, bytes_max=limit)
        most = 0
        while peers.is_coming("r", KEYS, 0, FOREVER):
            most = max(most, sum(info.nbytes for info in here.client.list("*kv/*/*")))
        assert summary(here.client).counters.evicted_blocks > 0
        # All blocks, the gateway's copies, and those that a copy replaces while it is in its grace period.
        assert most <= limit + (2 << 20) + AHEAD_MAX * NBYTES
        peers.close()


def test_the_pace_is_that_of_computed_prompts(monkeypatch):
    now = 0.0
    monkeypatch.setattr("tensorlend._vllm.pace.time.monotonic", lambda: now)
    pace = Pace(10)
    pace.begin("short", 9, 9)
    pace.begin("a", 100, 50)
    now = 5
    pace.see("a", 100)
    assert pace.token_s is None, "it has not been computed"
    pace.see("a", 101)
    pace.see("short", 10)
    assert pace.token_s == 0.1
    now = 1000
    pace.see("a", 102)
    pace.begin("b", 100, 100)
    pace.begin("gone", 100, 100)
    pace.end("gone")
    now = 1030
    pace.see("gone", 101)
    pace.see("b", 101)
    assert pace.token_s == pytest.approx(0.2)


def test_a_pause_doubles(monkeypatch):
    now = 0.0
    monkeypatch.setattr("tensorlend.kvcache.pause.time.monotonic", lambda: now)
    pause, lengths = Pause(), []
    for _ in range(6):
        pause.begin()
        begun = now
        while not pause.is_over():
            now += 0.5
        lengths.append(now - begun)
    assert lengths == [1, 2, 4, 8, 16, 16]
    now += 100
    pause.begin()
    now += 1
    assert pause.is_over()


def test_options_of_peers_are_checked(tmp_path):
    with pytest.raises(ValueError, match="weights_version"):
        Options({"peers": ["a"]})
    for wrong in ("a", ["a/b"], [""]):
        with pytest.raises(ValueError, match="peers is"):
            Options({"peers": wrong, "weights_version": "1"})
    for wrong in (float("inf"), -1, 61):
        with pytest.raises(ValueError, match="peer_wait_s is"):
            Options({"peers": ["a"], "weights_version": "1", "peer_wait_s": wrong})
    with pytest.raises(ValueError, match="maximum is 8"):
        Options({"peers": ["a"] * (PEERS_MAX + 1), "weights_version": "1"})
    with pytest.raises(ValueError, match="pipeline_parallel_size"):
        block_bytes(configuration(tmp_path), None)
