"""Processes: forked, spawned, killed."""

import gc
import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest
from children import in_child
from places import NBYTES, Place
from waiting import eventually

import tensorlend

METHODS = ["fork", "spawn", "forkserver"]


def read(client, name):
    lease = client.get(name)
    return os.getpid(), lease.numpy().sum(), lease.metadata


def work(pipe, client, names):
    """In another process: answers with what it read, and publishes something."""
    client.put("answer", np.arange(4))
    pipe.send([read(client, name) for name in names])
    value = pipe.recv()
    pipe.send((type(value).__name__, value.numpy().tolist()))


@pytest.mark.parametrize("method", METHODS)
def test_a_client_goes_along(client, method):
    client.put("x", np.arange(10), metadata={"n": 1})
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=work, args=(there, client, ["x"]))
    process.start()
    (answer,) = here.recv()
    assert answer[0] == process.pid != os.getpid() and answer[1:] == (45, {"n": 1})
    assert client.wait_for("answer", 30).numpy().tolist() == [0, 1, 2, 3]
    here.send(client.get("x"))
    assert here.recv() == ("Lease", list(range(10)))
    process.join(30)
    assert process.exitcode == 0
    assert client.get("x").numpy().sum() == 45


def echo(queue_in, queue_out):
    for value in iter(queue_in.get, None):
        queue_out.put(value if isinstance(value, tensorlend.Lease) else value.take())
        queue_out.put(np.asarray(value.numpy() if isinstance(value, tensorlend.Lease) else 0).tolist())


@pytest.mark.parametrize("method", METHODS)
def test_leases_and_references_by_queues(client, method):
    context = multiprocessing.get_context(method)
    there, here = context.Queue(), context.Queue()
    process = context.Process(target=echo, args=(there, here))
    process.start()
    client.put("x", [1, 2, 3])
    there.put(client.get("x"))
    back, seen = here.get(timeout=60), here.get(timeout=60)
    assert back.numpy().tolist() == seen == [1, 2, 3] and back.version == client.version("x")
    ref = client.share([4, 5])
    there.put(ref)
    # The child has received the value, so its name has ended, and the message cannot be received again.
    with pytest.raises(tensorlend.NotFoundError):
        here.get(timeout=60)
    here.get(timeout=60)
    assert ref.name not in client
    there.put(None)
    process.join(30)
    assert process.exitcode == 0


def test_a_forked_child_opens_a_session_of_its_own(client):
    client.put("x", [1])
    before = client.stat()["clients"]

    def work():
        return client.stat()["clients"], client.get("x").numpy().tolist(), client.put("y", [2]) is not None

    assert in_child(work) == (before + 1, [1], True)
    assert client.get("y").numpy().tolist() == [2]


def test_a_forked_child_reads_what_its_parent_leased(client):
    """Whatever becomes of the names, and of the parent's own references."""
    client.put("x", np.arange(3), metadata={"unit": "m"})
    client.put_dataset("d", {"a": np.ones(1000), "b": np.arange(4)})
    lease, dataset, private = client.get("x"), client.get_dataset("d"), client.get("x", mode="cow")
    array, writable = dataset["a"].numpy(), private.numpy()
    here, there = multiprocessing.Pipe()

    def work():
        assert there.recv() == "replaced"
        writable[0] = 7
        again = in_child(lambda: (array.sum(), lease.numpy().tolist()))
        return (
            lease.numpy().tolist(), bytes(memoryview(lease))[:1], lease.metadata, lease.shape, array.sum(),
            dataset["b"].numpy().tolist(), writable.tolist(), again,
        )  # fmt: skip

    def replace():
        nonlocal lease, dataset, private, array, writable
        client.put("x", [9, 9, 9])
        client.put_dataset("d", {"a": np.zeros(1000), "b": np.zeros(4, int)})
        assert writable.tolist() == [0, 1, 2]
        del lease, dataset, private, array, writable
        for _ in range(100):
            client.put("y", [8, 8, 8])
            client.put("z", np.zeros(1000))
        here.send("replaced")

    seen = in_child(work, meanwhile=replace)
    assert seen == ([0, 1, 2], b"\0", {"unit": "m"}, (3,), 1000, [0, 1, 2, 3], [7, 1, 2], (1000, [0, 1, 2]))


def test_what_else_a_forked_child_inherits_is_its_parents(client):
    client.put("x", np.arange(3))
    stream = client.stream("s")
    lease, draft, subscription = client.get("x"), client.create(3), client.subscribe("s")
    uses = [
        lambda: draft.array, lambda: draft.publish("x"), lambda: stream.send(1), lambda: subscription.recv(0),
        lambda: subscription.position,
    ]  # fmt: skip

    def work():
        said = []
        for use in uses:
            with pytest.raises(tensorlend.Error) as caught:
                use()
            said.append(str(caught.value))
        subscription.close()
        return said

    assert all("in the child" in text for text in in_child(work))
    stream.send(1)
    assert subscription.recv(10).sequence == 0 and lease.numpy().tolist() == [0, 1, 2]
    draft.publish("x")


def test_a_child_that_ends_takes_nothing_along(client):
    """Not even when all that it inherited is dropped, as an interpreter does that ends."""
    place = Place(client)
    place.draft.array[:] = 5
    place.draft.publish("x")
    held = [client.get("x"), client.create(10), client.stream("s"), client.subscribe("s")]
    client.delete("x")

    def work():
        held.clear()
        gc.collect()

    in_child(work)
    assert place.stays() and (held[0].numpy() == 5).all()
    held[1].publish("y")
    held[2].send(1)
    assert held[3].recv(10).sequence == 0


def test_a_child_that_exits_leaves_the_parents_broker_alone(script):
    done = script(
        """
import os, sys, tensorlend
broker = tensorlend.embedded(); client = broker.connect(); client.put("x", 1)
pid = os.fork()
if pid == 0:
    sys.exit(0)                     # with everything that an interpreter does at its end
assert os.waitpid(pid, 0)[1] == 0
pid = os.fork()
if pid == 0:
    broker.close()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert os.path.exists(broker.address) and client.get("x").numpy() == 1 and broker.connect().ping() > 0
print("fine")
"""
    )
    assert done.stdout == "fine\n"


def test_a_fork_while_another_thread_waits(client):
    stream = client.stream("s")
    subscription = client.subscribe("s", start="next")
    taken = []
    thread = threading.Thread(target=lambda: taken.append(subscription.recv(60)))
    thread.start()
    time.sleep(0.1)
    client.put("x", 3)

    def work():
        with pytest.raises(tensorlend.Error, match="in the child"):
            subscription.try_recv()
        subscription.close()
        return int(client.get("x").numpy())

    for _ in range(5):
        assert in_child(work) == 3
    stream.send(7)
    thread.join(30)
    assert taken[0].numpy() == 7


def test_threads_of_a_forked_child_use_one_client_at_once(client):
    client.put("x", np.arange(5))

    def work():
        sums = []
        threads = [threading.Thread(target=lambda: sums.append(int(client.get("x").numpy().sum()))) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join(30) for thread in threads]
        return sums

    for _ in range(3):
        assert in_child(work) == [10] * 8


def hold(address, name, pipe):
    client = tensorlend.connect(address)
    lease = client.get(name)
    array = lease.numpy()
    draft = client.create(NBYTES)
    subscription = client.subscribe("s")
    pipe.send(int(array[0]))
    time.sleep(600)
    del draft, subscription


def test_a_killed_process_holds_nothing(broker, client):
    place = Place(client)
    place.draft.array[:] = 5
    place.draft.publish("x")
    stream = client.stream("s")
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=hold, args=(broker.address, "x", there))
    process.start()
    assert here.poll(60) and here.recv() == 5
    assert client.stat()["clients"] == 2 and stream.subscribers == 1
    client.delete("x")
    assert place.stays()
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    eventually("the end of the killed client", lambda: client.stat()["clients"] == 1 and not stream.subscribers)
    assert place.comes_back()


def die(address):
    client = tensorlend.connect(address)
    client.put("x", [1, 2])
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_published_lives_on(broker, client):
    process = multiprocessing.get_context("spawn").Process(target=die, args=(broker.address,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert client.get("x").numpy().tolist() == [1, 2]
    eventually("the end of the owner", lambda: not client.info("x").alive)


def test_a_program_may_end_while_a_thread_waits(script):
    for wait in ["subscription.recv()", "client.wait_for('nothing')", "client.wait_length('l', 5)", "stream.wait_subscribers(9)"]:
        done = script(
            f"""
import threading, time, tensorlend
broker = tensorlend.embedded(); client = broker.connect()
stream = client.stream("s"); subscription = client.subscribe("s")
threading.Thread(target=lambda: {wait}, daemon=True).start()
time.sleep(0.1)
print("end")
"""
        )
        assert done.stdout == "end\n" and done.stderr == ""
