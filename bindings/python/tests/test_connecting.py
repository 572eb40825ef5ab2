"""Connecting, closing, and brokers of one's own."""

import gc
import os
import pathlib
import signal

import numpy as np
import pytest

import tensorlend


def test_a_client_knows_where_it_is(broker):
    client = broker.connect(label="camera")
    assert client.address == [pathlib.Path(broker.address)]
    assert client.namespace == f"uid:{os.getuid()}"
    assert client.daemon_version == tensorlend.__build__
    assert tensorlend.__build__.startswith(f"{tensorlend.__version__} (")
    assert not client.closed
    assert client.namespace in repr(client)
    assert broker.address in repr(broker)
    client.put("x", 1)
    assert (client.info("x").label, client.info("x").pid) == ("camera", os.getpid())


def test_an_address_is_a_path_or_several(broker):
    here = pathlib.Path(broker.address)
    for address in [broker.address, here, [broker.address], ["/nowhere/tensorlend.sock", here]]:
        with tensorlend.connect(address) as client:
            assert client.ping() > 0


def test_the_default_address_is_of_the_environment(broker, monkeypatch):
    monkeypatch.setenv("TENSORLEND_SOCKET", broker.address)
    with tensorlend.connect() as client:
        assert client.stat()["pid"] == os.getpid()


def test_without_a_daemon_it_says_so(tmp_path):
    with pytest.raises(tensorlend.DisconnectedError, match="run `tensorlendd --daemonize` or set TENSORLEND_SOCKET"):
        tensorlend.connect(tmp_path / "no.sock")
    with pytest.raises(ConnectionError):
        tensorlend.connect(str(tmp_path / "no.sock"))
    with pytest.raises(TypeError):
        tensorlend.connect(7)


def test_a_namespace_that_is_not_there_is_refused(broker):
    with pytest.raises(tensorlend.PermissionError, match=r"namespace.*configuration"):
        broker.connect(namespace="secret")
    with pytest.raises(tensorlend.ArgumentError, match="at least one byte"):
        broker.connect(namespace="")


def test_namespaces_are_apart():
    uid = os.getuid()
    config = f'[namespace.team]\nwriters = ["{uid}"]\n'
    with tensorlend.embedded(config) as broker, broker.connect() as own, broker.connect(namespace="team") as team:
        own.put("x", 1)
        assert "x" not in team
        assert team.namespace == "team"


def test_a_closed_client_says_so(client):
    client.close()
    client.close()
    assert client.closed and "closed" in repr(client)
    for call in [lambda: client.get("x"), lambda: client.put("x", 1), client.ping, lambda: client.namespace]:
        with pytest.raises(tensorlend.DisconnectedError, match="connect again"):
            call()


def test_a_lease_outlives_its_client(client):
    client.put("x", np.arange(10))
    lease = client.get("x")
    client.close()
    assert lease.numpy().tolist() == list(range(10))


def test_a_broker_that_is_closed_is_gone(broker):
    client = broker.connect()
    broker.close()
    broker.close()
    with pytest.raises(tensorlend.DisconnectedError, match="closed the connection"):
        client.ping()
    with pytest.raises(tensorlend.DisconnectedError, match="no tensorlend daemon"):
        broker.connect()
    assert not pathlib.Path(broker.address).exists()


def test_a_request_timeout_is_a_time(broker):
    with pytest.raises(tensorlend.ArgumentError, match="timeout of -1 seconds"):
        tensorlend.connect(broker.address, request_timeout=-1)
    with tensorlend.connect(broker.address, request_timeout=60) as client:
        assert client._options["request_timeout"] == 60


def test_a_configuration_that_is_wrong_is_shown():
    with pytest.raises(tensorlend.ArgumentError, match="unknown field `pools`"):
        tensorlend.embedded("pools = 1")
    with pytest.raises(ValueError, match="TOML"):
        tensorlend.embedded("=")


def test_a_client_has_a_limit_of_its_own(broker):
    with broker.connect(memory_limit=1 << 20) as client:
        client.put("small", np.zeros(1000))
        with pytest.raises(tensorlend.LimitError, match="raise memory_limit") as caught:
            client.put("large", np.zeros(1 << 20))
        assert caught.value.kind is tensorlend.LimitKind.CLIENT_BYTES
        with pytest.raises(MemoryError):
            client.create(1 << 20)


def test_figures(client):
    before = client.memory()
    client.put("x", np.zeros(1 << 17))
    slot_bytes, segment_bytes = client.memory()
    assert slot_bytes - before[0] >= 1 << 20
    assert segment_bytes >= slot_bytes
    stat = client.stat()
    assert stat["clients"] == 1 and stat["names"] == 1
    assert stat["namespaces"][0]["name"] == client.namespace
    assert 0 < client.ping() < 5


def test_a_harder_client_works_too(broker):
    with tensorlend.connect(broker.address, harden=True) as client:
        client.put("x", [1, 2])
        assert client.get("x").numpy().tolist() == [1, 2]


def test_a_client_keeps_its_embedded_daemon() -> None:
    # As README and manual print it: only the client refers to the daemon.
    client = tensorlend.embedded().connect()
    gc.collect()
    client.put("weights", np.arange(3))
    assert client.list()[0].name == "weights"
    assert client.get("weights").numpy().tolist() == [0, 1, 2]
    client.close()


def test_a_daemon_that_is_closed_ends_though_a_client_keeps_it() -> None:
    broker = tensorlend.embedded()
    client = broker.connect()
    broker.close()
    with pytest.raises(tensorlend.DisconnectedError):
        client.put("weights", np.arange(3))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_process_leaves_is_removed_by_the_next_daemon(script, how):
    start = "import os, tensorlend; broker = tensorlend.embedded(); print(broker.address, flush=True)\n"
    done = script(start + f"os.kill(os.getpid(), {int(how)})", check=False)
    assert done.returncode == -how
    left = pathlib.Path(done.stdout.strip())
    with tensorlend.embedded() as running:
        script(start)
        assert not left.parent.exists()
        assert pathlib.Path(running.address).exists()
