"""Blocks of a KV cache: keys, saving, loading, eviction, and deaths at every step."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from kv_engine import BLOCK, IDENTITY, NBYTES, Engine, prompt
from stored_daemon import StoredDaemon
from waiting import eventually

import tensorlend
from tensorlend.kvcache import BlockStore, Counters, GroupBytes, Identity, Summary, summary

GIB = 1 << 30


def filled(value):
    def fill(into):
        into[:] = value

    return fill


def names(client):
    return client.names("kv/*")


@pytest.fixture
def store(client):
    return BlockStore(client, IDENTITY, bytes_max=GIB)


@pytest.fixture
def daemon(tmp_path):
    daemon = StoredDaemon(tmp_path)
    yield daemon
    daemon.close()


def test_a_key_is_the_prefix():
    tokens = prompt(1, 5 * BLOCK)
    keys = IDENTITY.keys(tokens)
    assert len(set(keys)) == 5 and all(len(key) == 32 for key in keys)
    assert IDENTITY.keys(tokens[:-1]) == keys[:4], "a block that is not full has no key"
    other = [*tokens[:BLOCK], tokens[BLOCK] + 1, *tokens[BLOCK + 1 :]]
    assert IDENTITY.keys(other)[0] == keys[0]
    assert not set(IDENTITY.keys(other)[1:]) & set(keys), "each key depends on all tokens before it"
    assert not set(IDENTITY.keys(tokens, "one user")) & set(keys)
    assert IDENTITY.keys(tuple(np.array(tokens, np.int32))) == keys


@pytest.mark.parametrize("other", [("large", "float32", BLOCK, {}), ("small", "float16", BLOCK, {}), ("small", "float32", 32, {}), ("small", "float32", BLOCK, {"seed": 8})])  # fmt: skip
def test_models_share_no_blocks(client, store, other):
    key = IDENTITY.keys(prompt(1, BLOCK))[0]
    assert store.save(key, NBYTES, filled(1))
    assert store.match([key]) == 1
    assert BlockStore(client, Identity(*other), bytes_max=GIB).match([key]) == 0
    assert BlockStore(client, IDENTITY, rank=1, bytes_max=GIB).match([key]) == 0
    (name,) = names(client)
    assert len(name) <= 64, "a new name of this length does not wait for the daemon"


def test_blocks_come_back_as_they_were_saved(client, store):
    keys = IDENTITY.keys(prompt(1, 3 * BLOCK))
    assert store.match(keys) == 0
    for depth, key in enumerate(keys[:2]):
        assert store.save(key, NBYTES, filled(depth + 1), depth=depth)
    other = BlockStore(client, IDENTITY, bytes_max=GIB)
    assert other.match(keys) == 2
    for depth, key in enumerate(keys[:2]):
        with other.load(key, NBYTES) as lease:
            assert lease.readonly and (lease.numpy() == depth + 1).all()
    assert other.load(keys[2], NBYTES) is None
    assert other.load(keys[0], NBYTES + 1) is None, "another length is another layout"
    assert (other.counters.loaded_blocks, other.counters.lost) == (2, 2)


def test_a_block_is_saved_once(client, store):
    key = IDENTITY.keys(prompt(1, BLOCK))[0]
    assert store.save(key, NBYTES, filled(1))
    version = client.version(names(client)[0])
    assert BlockStore(client, IDENTITY, bytes_max=GIB).save(key, NBYTES, filled(2)), "it is lent, which is what was asked for"
    assert client.version(names(client)[0]) == version
    assert store.counters.saved_blocks == 1


def test_a_block_that_could_not_be_filled_is_not_lent(client, store):
    def fail(into):
        into[:] = 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.save("0" * 32, NBYTES, fail)
    assert names(client) == []


def test_the_oldest_uses_are_evicted_first(client):
    """Saved in the order a, b, c; a is used again, by another store."""
    store = BlockStore(client, IDENTITY, bytes_max=12 * NBYTES)
    a, b, c, d = (IDENTITY.keys(prompt(seed, 4 * BLOCK)) for seed in range(4))
    for keys in (a, b, c):
        begun_ns = time.time_ns()
        for depth, key in enumerate(keys):
            assert store.save(key, NBYTES, filled(1), depth=depth, begun_ns=begun_ns)
    assert [store.match(keys) for keys in (a, b, c)] == [4, 4, 4]
    reader = BlockStore(client, IDENTITY, bytes_max=12 * NBYTES)
    reader.note(a, reader.match(a))
    reader.close()
    store.save(d[0], NBYTES, filled(1))
    assert store.match(a) == 4, "it was used last"
    assert 0 < store.match(b) < 4, "of the oldest prompt the end is evicted first"
    assert store.match(c) == 4 and store.match(d) == 1
    assert store.counters.evicted_blocks == 3 and store.counters.evicted_bytes == 3 * NBYTES


def test_all_stores_of_a_namespace_keep_one_limit(client):
    limit = 40 * NBYTES
    stores = [BlockStore(client, Identity(f"model {number}", "float32", BLOCK), bytes_max=limit) for number in range(3)]
    most = 0
    for number in range(120):
        assert stores[number % 3].save(f"{number:032x}", NBYTES, filled(1))
        most = max(most, sum(info.nbytes for info in client.list("kv/*/*")))
    # Each of the other two may have saved a sixteenth since the last listing.
    assert most <= limit * (1 + 2 / 16) + 2 * NBYTES
    assert len({name.split("/")[1] for name in names(client)}) == 3


def test_an_evicted_block_stays_for_its_readers(client, store):
    key = IDENTITY.keys(prompt(1, BLOCK))[0]
    store.save(key, NBYTES, filled(7))
    with store.load(key, NBYTES) as lease:
        assert store.evict(0) == NBYTES and store.match([key]) == 0
        for number in range(20):
            store.save(f"{number:032x}", NBYTES, filled(1))
        assert (lease.numpy() == 7).all()
    assert store.evict(0) == 20 * NBYTES


def test_a_limit_of_the_daemon_evicts_too():
    config = f'[namespace.small]\nwriters = ["{os.getuid()}"]\nnames_max = 512\n'
    with tensorlend.embedded(config) as broker, broker.connect(namespace="small") as client:
        store = BlockStore(client, IDENTITY, bytes_max=GIB)
        for number in range(600):
            store.save(f"{number:032x}", NBYTES, filled(1))
        assert store.counters.evicted_blocks > 0 and store.match([f"{599:032x}"]) == 1
        assert store.counters.refused < 10 and store.counters.errors == 0


def test_reports_of_others_are_not_believed(client, store):
    store.save("0" * 32, NBYTES, filled(1))
    group = IDENTITY.group().removeprefix("kv/")
    client.put(f"kv-reports/{group}/1", np.zeros((2, 2)), metadata=b"no json")
    client.put(f"kv-reports/{group}/2", np.zeros(3, np.uint64), metadata={"counters": {"hits": "x", "foreign": 1}})
    client.put_dataset(f"kv-reports/{group}/3", {"x": [1]})
    assert store.evict(0) == NBYTES
    assert summary(client).counters.hits == 0
    assert not client.exists(f"kv-reports/{group}/1") and not client.exists(f"kv-reports/{group}/2"), "they have no time"


def test_the_summary_has_bytes_by_model_and_the_hit_rate(client, broker, script):
    store = BlockStore(client, IDENTITY, bytes_max=GIB)
    Engine(store).generate(prompt(1, 4 * BLOCK + 1), 1)
    Engine(store).generate(prompt(1, 4 * BLOCK + 1), 1)
    store.close()
    found = summary(client)
    (group,) = found.groups.values()
    assert (group.model, group.dtype, group.blocks, group.bytes) == ("small", "float32", 4, 4 * NBYTES)
    assert (found.counters.queries, found.counters.hits, found.counters.hit_rate()) == (8, 4, 0.5)
    assert found.counters.saved_bytes == found.counters.loaded_bytes == 4 * NBYTES
    assert Counters().hit_rate() == 0
    environment = f"import os, runpy, sys; os.environ['TENSORLEND_SOCKET'] = {broker.address!r}\n"
    run = environment + "sys.argv[1:] = {}\nrunpy.run_module('tensorlend.kvcache', run_name='__main__')"
    text = script(run.format([])).stdout
    assert "hit rate 0.500" in text and "small" in text and "32.0 KiB" in text
    lines = script(run.format(["--prometheus"])).stdout.splitlines()
    assert "tensorlend_kv_hits_total 4" in lines
    assert any(line.startswith("tensorlend_kv_bytes{") and 'model="small"' in line and line.endswith(f" {4 * NBYTES}") for line in lines)


def test_the_dashboard_asks_for_metrics_that_exist():
    folder = pathlib.Path(__file__).parents[3] / "packaging" / "grafana"
    if not folder.exists():
        pytest.skip("the dashboards are not there: these tests run without the clone")
    board = json.loads((folder / "kv-cache.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in board["templating"]["list"]]
    printed = Summary(groups={"g": GroupBytes("m", "d", 1, 2)}).prometheus()
    asked = [name for query in queries for name in re.findall(r"tensorlend_\w+", query)]
    assert len(asked) == 10
    for name in asked:
        assert re.search(rf"^{name}[ {{]", printed, re.MULTILINE), name
    assert all(query.count('{instance=~"$instance"}') == query.count("tensorlend_") for query in queries if "label_values" not in query)


ENGINE = """
import os, signal, sys
import tensorlend
from kv_engine import BLOCK, IDENTITY, Engine, prompt
from tensorlend.kvcache import BlockStore

store = BlockStore(tensorlend.connect(sys.argv[1], request_timeout=float(sys.argv[2])), IDENTITY, bytes_max=1 << 30)
engine = Engine(store)
for line in sys.stdin:
    command, *words = line.split()
    if command == "generate":
        seed, length, count = map(int, words)
        before = engine.computed
        print(*engine.generate(prompt(seed, length), count), "computed", engine.computed - before, flush=True)
    elif command == "die_saving":
        def fill(into):
            into[:] = 1
            os.kill(os.getpid(), signal.SIGKILL)
        store.save("f" * 32, 1 << 20, fill)
    elif command == "die_leasing":
        lease = store.load(IDENTITY.keys(prompt(1, BLOCK))[0], int(words[0]))
        assert lease is not None
        os.kill(os.getpid(), signal.SIGKILL)
    elif command == "counters":
        print(store.counters.queries, store.counters.hits, flush=True)
"""


class Process:
    """An engine in a process of its own."""

    def __init__(self, socket, timeout=30):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-c", ENGINE, str(socket), str(timeout)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def ask(self, *words):
        print(*words, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().split()

    def generate(self, seed, length=8 * BLOCK + 3, count=20):
        *tokens, _, computed = self.ask("generate", seed, length, count)
        return list(map(int, tokens)), int(computed)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        return self.wait()

    def wait(self):
        status = self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        return status


def alone(seed, length=8 * BLOCK + 3, count=20):
    """The tokens that an engine without a cache computes."""
    return Engine().generate(prompt(seed, length), count)


def test_another_process_computes_only_the_rest(broker):
    first, second = Process(broker.address), Process(broker.address)
    assert first.generate(1) == (alone(1), 8 * BLOCK + 3 + 19)
    assert second.generate(1) == (alone(1), 3 + 19)
    # The blocks of generated tokens are lent, too: the next turn of a conversation starts with them.
    longer = prompt(1, 8 * BLOCK + 3) + alone(1)[:15]
    assert broker.connect().names("kv/*") and len(longer) > 9 * BLOCK
    store = BlockStore(broker.connect(), IDENTITY, bytes_max=GIB)
    assert store.match(IDENTITY.keys(longer)) == 9
    first.kill()
    second.kill()


def bytes_end(client):
    """Waits until the daemon has no byte in use: nothing is orphaned."""
    eventually("the daemon's memory without orphans", lambda: client.stat()["bytes_in_use"] == 0)


def test_an_engine_killed_at_any_step_leaves_nothing_behind(daemon):
    survivor = Process(daemon.socket)
    for command in ("generate 1 131 20", "die_saving", f"die_leasing {NBYTES}"):
        engine = Process(daemon.socket)
        engine.generate(1)
        engine.ask(*command.split())
        engine.kill()
        assert survivor.generate(1) == (alone(1), 3 + 19)
    survivor.kill()
    with tensorlend.connect(daemon.socket) as client:
        found = names(client)
        assert not [name for name in found if name.endswith("f" * 32)], "a block that was not finished has no name"
        store = BlockStore(client, IDENTITY, bytes_max=GIB)
        assert store.evict(0) == len(found) * NBYTES
        for name in client.names("*"):
            client.delete(name)
    with tensorlend.connect(daemon.socket) as client:
        bytes_end(client)


def test_killing_all_processes_and_the_daemon_costs_no_block(daemon):
    seeds = range(1, 13)
    engine = Process(daemon.socket)
    for seed in seeds:
        engine.generate(seed)
    before = [engine.generate(seed) for seed in seeds]
    queries, hits = map(int, engine.ask("counters"))
    rate_before = hits / (queries / 2)
    daemon.kill()
    engine.kill()
    daemon.start()
    engine = Process(daemon.socket)
    assert [engine.generate(seed) for seed in seeds] == before
    queries, hits = map(int, engine.ask("counters"))
    assert hits / queries >= 0.99 * rate_before
    assert [tokens for tokens, _ in before] == [alone(seed) for seed in seeds]
    engine.kill()
    with tensorlend.connect(daemon.socket) as client:
        BlockStore(client, IDENTITY, bytes_max=GIB).evict(0)
        for name in client.names("*"):
            client.delete(name)
    with tensorlend.connect(daemon.socket) as client:
        bytes_end(client)


def test_a_daemon_that_hangs_is_asked_less_and_less(client, store, monkeypatch):
    now = 100.0
    monkeypatch.setattr(tensorlend.kvcache.store.time, "monotonic", lambda: now)
    create, asked = client.create, []

    def hangs(*arguments, **options):
        asked.append(now)
        raise tensorlend.DisconnectedError("the daemon hangs")

    stand_in = SimpleNamespace(create=hangs, exists=client.exists, list=client.list)
    monkeypatch.setattr(store, "_client", stand_in)
    for _ in range(50):
        assert not store.save("0" * 32, NBYTES, filled(1))
        now += 1
    assert asked == [100, 101, 103, 107, 115, 131, 147]
    now += 60
    stand_in.create = create
    assert store.save("0" * 32, NBYTES, filled(1))
    stand_in.create = hangs
    assert not store.save("1" * 32, NBYTES, filled(1)) and not store.save("1" * 32, NBYTES, filled(1))
    now += 1
    store.save("1" * 32, NBYTES, filled(1))
    assert asked[7:] == [210, 211], "after a time without errors, the pauses begin again"


def test_engines_compute_without_the_daemon(daemon):
    engine = Process(daemon.socket, timeout=1)
    engine.generate(1)
    daemon.kill()
    assert engine.generate(1)[0] == alone(1)
    assert engine.generate(2)[0] == alone(2)
    daemon.start()
    other = Process(daemon.socket)
    assert other.generate(1) == (alone(1), 3 + 19)
    assert engine.generate(3)[0] == alone(3)
    eventually("blocks of the engine that lived through it", lambda: engine.generate(3) and other.generate(3)[1] == 3 + 19)
    engine.kill()
    other.kill()
