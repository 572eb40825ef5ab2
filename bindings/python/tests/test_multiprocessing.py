"""Arrays through multiprocessing as leases."""

import concurrent.futures
import gc
import multiprocessing
import multiprocessing.util
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest
from children import in_child
from waiting import eventually

import tensorlend
import tensorlend.multiprocessing
from tensorlend import _transit

METHODS = ["fork", "spawn", "forkserver"]

LARGE = 1 << 17  # elements of 8 bytes

HUGE = _transit.MAIL_MAX // 8 + 1  # elements of 8 bytes: too large for a mailbox


def in_transit(client):
    return client.list("transit/*")


def all_received(client):
    """Waits for the receipts of other processes, which a thread handles."""
    eventually("all messages are received", lambda: not in_transit(client))


def is_free(client):
    """Whether nothing of this client is in use, except the presence of this process. It finds out when it allocates."""
    client.create(LARGE, "int64").drop()
    return client.memory()[0] <= 64


@pytest.fixture(autouse=True)
def mapped(monkeypatch):
    """Makes receivers map all arrays, so that tests can distinguish them from pickles."""
    monkeypatch.setattr(_transit, "COPIES_MAX", 0)


@pytest.fixture
def installed(client):
    tensorlend.multiprocessing.install(client=client)
    yield client
    tensorlend.multiprocessing.uninstall()


def is_leased(array):
    """Whether it views a lease, or owns what it has."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(getattr(array, "obj", array), tensorlend.Lease)


def double(address, inbox, outbox):
    _transit.COPIES_MAX = 0
    if address:
        tensorlend.multiprocessing.install(client=tensorlend.connect(address))
    while (array := inbox.get()) is not None:
        leased = is_leased(array)
        array *= 2  # its own, as if it was pickled
        outbox.put((leased, array))


@pytest.mark.parametrize("method", METHODS)
def test_queues(broker, installed, method):
    context = multiprocessing.get_context(method)
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=double, args=(method != "fork" and broker.address, inbox, outbox), daemon=True)
    process.start()
    for sent in (np.arange(LARGE), np.asfortranarray(np.ones((512, 1024), np.float32)), np.arange(9), np.ones((4, 0))):
        inbox.put(sent)
        leased, back = outbox.get(timeout=60)
        assert leased == is_leased(back) == (sent.nbytes >= tensorlend.multiprocessing.SMALLEST)
        assert (back == sent * 2).all() and back.flags.writeable and back.flags.f_contiguous == sent.flags.f_contiguous
    inbox.put(None)
    process.join(60)
    assert process.exitcode == 0
    all_received(installed)


def test_pipes_keep_what_the_sender_had(installed):
    here, there = multiprocessing.Pipe()
    sent = np.arange(LARGE)
    here.send({"a": [sent, "text"], "b": sent[:3]})
    sent[:] = 0
    found = there.recv()
    assert is_leased(found["a"][0]) and (found["a"][0] == np.arange(LARGE)).all() and found["b"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_receiver_copies_a_short_array_and_frees_the_senders_memory(installed, monkeypatch, order):
    sent = np.arange(2 * LARGE).reshape(2, LARGE, order=order)
    monkeypatch.setattr(_transit, "COPIES_MAX", sent.nbytes)
    here, there = multiprocessing.Pipe()
    here.send(sent)
    assert len(in_transit(installed)) == 1
    found = there.recv()
    assert not is_leased(found) and (found == sent).all() and found.strides == sent.strides and found.flags.writeable
    assert not in_transit(installed) and is_free(installed)
    here.send(np.arange(2 * LARGE + 1))
    assert is_leased(there.recv())


def square(array):
    return array * array


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pools(installed, method):
    arrays = [np.full(LARGE, n) for n in range(6)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert [result[7] for result in pool.map(square, arrays)] == [n * n for n in range(6)]
        pool.close()
        pool.join()
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        assert [result[7] for result in executor.map(square, arrays)] == [n * n for n in range(6)]
    all_received(installed)


def test_managers(installed):
    with multiprocessing.Manager() as manager:
        shared = manager.dict()
        shared["x"] = np.arange(LARGE)
        assert shared["x"][-1] == LARGE - 1 and shared["x"][-1] == LARGE - 1
    all_received(installed)


def put_and_end(queue):
    queue.put(np.arange(LARGE))


def test_a_message_outlives_its_sender(installed):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=put_and_end, args=(queue,), daemon=True)
    process.start()
    process.join(60)
    eventually("the sender is gone", lambda: installed.stat()["clients"] == 1)
    assert is_leased(array := queue.get(timeout=60)) and array[-1] == LARGE - 1


def test_a_message_that_nobody_receives_ends(client):
    tensorlend.multiprocessing.install(client=client, ttl=0.5)
    here, there = multiprocessing.Pipe()
    here.send(np.arange(LARGE))
    assert there.poll(60) and len(in_transit(client)) == 1
    eventually("the name ends", lambda: not in_transit(client))
    with pytest.raises(tensorlend.NotFoundError, match=r"waited for more than 0\.5 s"):
        there.recv()
    tensorlend.multiprocessing.uninstall()


PROGRAM = """
import multiprocessing, os, signal, sys, time
import numpy as np
import tensorlend.multiprocessing
from tensorlend import _transit

def receive(inbox):
    inbox.recv()
    print("received", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    _transit.WAITING_BYTES_MAX = 1 << 30
    tensorlend.multiprocessing.install()
    context = multiprocessing.get_context(sys.argv[1])
    inbox, here = context.Pipe(duplex=False)
    receiver = context.Process(target=receive, args=(inbox,), daemon=True)
    receiver.start()
    for _ in range(20):
        here.send(np.zeros(1 << 17))
    here.send(np.zeros(1 << 20))
    sys.stdin.readline()
    receiver.kill()
    receiver.join()
"""


@pytest.fixture
def program(broker, tmp_path):
    """A function that starts a program whose receiver leaves messages."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    started = []

    def start(method):
        environment = {**os.environ, "TENSORLEND_SOCKET": broker.address}
        started.append(subprocess.Popen(
            [sys.executable, path, method], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        ))  # fmt: skip
        assert started[-1].stdout.readline() == b"received\n"
        return started[-1]

    yield start
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


@pytest.mark.parametrize("method", METHODS)
def test_messages_of_a_killed_receiver_end_with_the_program(client, program, method):
    process = program(method)
    eventually("all messages are sent", lambda: len(in_transit(client)) >= 20)
    process.communicate(b"\n", timeout=60)
    assert process.returncode == 0 and not in_transit(client)


def test_messages_of_a_killed_program_end_when_another_program_comes(client, program):
    killed = program("fork")
    eventually("all messages are sent", lambda: len(in_transit(client)) >= 20)
    left = {info.name for info in in_transit(client)}
    os.killpg(killed.pid, signal.SIGKILL)
    eventually("its sessions end", lambda: client.stat()["clients"] == 1)
    assert {info.name for info in in_transit(client)} == left
    program("fork")
    eventually("all messages are sent", lambda: len({info.name for info in in_transit(client)} - left) >= 20)
    assert not {info.name for info in in_transit(client)} & left


def test_other_names_in_the_folder_of_messages_stay(client, program):
    names = ["transit/x", "transit/berlin/lines", "transit/1/2/3", "transit-present/x"]
    for name in names:
        client.put(name, np.zeros(3))
    process = program("fork")
    eventually("all messages are sent", lambda: len(in_transit(client)) >= 23)
    process.communicate(b"\n", timeout=60)
    assert process.returncode == 0 and all(client.exists(name) for name in names) and len(in_transit(client)) == 3


def test_no_message_waits_for_one_that_is_lost(installed, monkeypatch):
    pickler = multiprocessing.reduction.ForkingPickler
    lost = pickler.dumps(np.zeros(_transit.WAITING_BYTES_MAX + 1, np.uint8))
    waits = []
    monkeypatch.setattr(_transit, "time", types.SimpleNamespace(monotonic=time.monotonic, sleep=waits.append))
    monkeypatch.setattr(_transit, "_WAIT_SECONDS", 0.01)
    for _ in range(5):
        assert len(pickler.dumps(np.arange(LARGE))) > 8 * LARGE
        waited, waits[:] = len(waits), []
    assert waited == 0
    # As soon as a process receives the message, arrays are lent again.
    assert len(pickler.loads(lost)) == _transit.WAITING_BYTES_MAX + 1
    assert is_leased(pickler.loads(pickler.dumps(np.arange(LARGE))))


def test_messages_wait_for_a_receiver_that_lives(broker, client, program):
    """The sender is killed, its child reads on, and another program comes."""
    process = program("fork")
    eventually("all messages are sent", lambda: len(in_transit(client)) >= 20)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = len(in_transit(client))
    tensorlend.multiprocessing.install(client=client)
    assert len(in_transit(client)) == left
    tensorlend.multiprocessing.uninstall()


def test_messages_of_a_process_wait_for_its_parent(broker, installed):
    """The process is another program: it has another key of multiprocessing. It sends, and ends."""
    here, there = multiprocessing.Pipe()
    source = (
        "import sys, numpy, tensorlend.multiprocessing\n"
        "from multiprocessing.connection import Connection\n"
        "tensorlend.multiprocessing.install(client=tensorlend.connect(sys.argv[1]))\n"
        "Connection(int(sys.argv[2])).send(numpy.arange(1 << 20))\n"
    )
    subprocess.run([sys.executable, "-c", source, broker.address, str(there.fileno())], pass_fds=[there.fileno()], check=True)
    assert here.recv()[-1] == (1 << 20) - 1


def test_a_message_is_received_once(installed):
    text = multiprocessing.reduction.ForkingPickler.dumps(np.arange(LARGE))
    assert len(text) < 1000
    first = multiprocessing.reduction.ForkingPickler.loads(text)
    with pytest.raises(tensorlend.NotFoundError, match="received before"):
        multiprocessing.reduction.ForkingPickler.loads(text)
    assert first[5] == 5


def test_the_memory_is_the_receivers(installed):
    here, there = multiprocessing.Pipe()
    here.send(np.arange(LARGE))
    array = there.recv()
    used = installed.memory()[0]
    assert not in_transit(installed) and array[-1] == LARGE - 1
    del array
    gc.collect()
    here.send(np.arange(LARGE))
    array = there.recv()
    assert installed.memory()[0] <= used


def test_many_received_arrays_leave_leases_for_others(installed, monkeypatch):
    monkeypatch.setattr(_transit, "LEASES_MAX", 3)
    here, there = multiprocessing.Pipe()
    found = []
    for n in range(5):
        here.send(np.full(LARGE, n))
        found.append(there.recv())
    assert list(map(is_leased, found)) == [True] * 3 + [False] * 2 and [int(one[0]) for one in found] == list(range(5))
    del found[0]
    gc.collect()
    here.send(np.full(LARGE, 9))
    assert is_leased(there.recv())


def test_what_cannot_be_lent_is_pickled(broker, client):
    limited = broker.connect(memory_limit=1 << 20)
    tensorlend.multiprocessing.install(client=limited)
    here, there = multiprocessing.Pipe()
    large = np.zeros(LARGE * 4)
    objects = np.array([None] * LARGE)
    records = np.zeros(LARGE, [("a", "i4"), ("b", "f4")])
    for sent in (large, objects, records):

        def child(sent=sent):
            here.send(sent)

        process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
        process.start()
        found = there.recv()
        process.join(60)
        assert not is_leased(found) and found.dtype == sent.dtype and len(found) == len(sent)
    tensorlend.multiprocessing.uninstall()


def test_read_only(client):
    tensorlend.multiprocessing.install(client=client, mode="read")
    here, there = multiprocessing.Pipe()
    here.send(np.arange(LARGE))
    assert not there.recv().flags.writeable
    tensorlend.multiprocessing.uninstall()


def test_a_forked_child_sends_by_itself(installed):
    reader, writer = multiprocessing.Pipe(duplex=False)
    array = np.arange(LARGE)

    def work():
        writer.send(array)
        return os.getpid()

    pid = in_child(work)
    assert [info.pid for info in in_transit(installed)] == [pid]
    assert is_leased(reader.recv())


def killed(role, step, broker, pipe, length):
    program = pathlib.Path(__file__).with_name("transit_steps.py")
    command = [sys.executable, str(program), role, step, broker.address, str(pipe.fileno()), str(length)]
    done = subprocess.run(command, pass_fds=[pipe.fileno()], timeout=60, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def ends_by_itself(client, count):
    """Asserts the number of messages under way, each with a lifetime, and deletes them."""
    names = in_transit(client)
    assert len(names) == count and all(info.ttl is not None and 0 < info.ttl <= 86_400 and not info.ephemeral for info in names)
    for info in names:
        client.delete(info.name)


@pytest.mark.parametrize(
    ("length", "step", "left"),
    [
        *[(HUGE, "before put", 0), (HUGE, "after put", 1), (HUGE, "at the end", 1)],
        *[(LARGE, "before _mail", 0), (LARGE, "after _mail", 1), (LARGE, "at the end", 1)],
    ],
)
def test_a_sender_that_is_killed(broker, client, length, step, left):
    here, there = multiprocessing.Pipe()
    killed("send", step, broker, there, length)
    there.close()
    eventually("its session ends", lambda: client.stat()["clients"] == 1)
    if step == "at the end":
        assert here.recv()[-1] == length - 1
        left = 0
    else:
        with pytest.raises(EOFError):
            here.recv()
    ends_by_itself(client, left)


@pytest.mark.parametrize(
    ("length", "step", "left"),
    [
        *[(HUGE, "before get_value", 1), (HUGE, "after get_value", 1), (HUGE, "before delete", 1), (HUGE, "after delete", 0)],
        *[(LARGE, "before get_value", 1), (LARGE, "after get_value", 1), (LARGE, "before _send_receipt", 1), (LARGE, "after _send_receipt", 0)],
    ],
)
def test_a_receiver_that_is_killed(broker, installed, length, step, left):
    here, there = multiprocessing.Pipe()
    here.send(np.arange(length))
    killed("receive", step, broker, there, length)
    eventually("its session ends", lambda: installed.stat()["clients"] == 1)
    if step == "after _send_receipt":
        all_received(installed)
    ends_by_itself(installed, left)
    eventually("the memory is free", lambda: is_free(installed))


def total(inbox, outbox):
    while (array := inbox.recv()) is not None:
        outbox.send((is_leased(array), int(array.sum())))


@pytest.mark.parametrize("mode", ["cow", "read"])
def test_messages_take_few_requests(client, mode):
    """The names, the segments and their descriptors are used again. Before, each message took two or three requests."""
    tensorlend.multiprocessing.install(client=client, mode=mode)
    context = multiprocessing.get_context("fork")
    (inbox, here), (back, outbox) = context.Pipe(duplex=False), context.Pipe(duplex=False)
    receiver = context.Process(target=total, args=(inbox, outbox), daemon=True)
    receiver.start()
    before, began = 0, 0.0
    for number in range(120):
        if number == 20:
            before, began = client.stat()["requests"], time.monotonic()
        here.send(np.full(LARGE, number))
        assert back.recv() == (True, number * LARGE)
    # The lifetime of a name in use is renewed once a second.
    renewals = 8 * (time.monotonic() - began)
    assert client.stat()["requests"] - before < 100 + renewals
    here.send(None)
    receiver.join(60)
    assert receiver.exitcode == 0
    all_received(client)
    tensorlend.multiprocessing.uninstall()


def test_more_messages_than_mailboxes_wait(installed, monkeypatch):
    monkeypatch.setattr(_transit, "WAITING_BYTES_MAX", 1 << 30)
    here, there = multiprocessing.Pipe()
    for number in range(20):
        here.send(np.full(LARGE, number))
    assert len(in_transit(installed)) == 20
    found = [there.recv() for _ in range(10)]
    for number in range(20, 25):
        here.send(np.full(LARGE, number))
    found += [there.recv() for _ in range(15)]
    assert [int(array[-1]) for array in found] == list(range(25)) and all(map(is_leased, found))
    assert not in_transit(installed)


def test_a_sender_that_is_faster_than_its_receiver_waits(installed):
    """As without tensorlend, the pipe blocks it. References to all of its arrays would fit into the pipe."""
    here, there = multiprocessing.Pipe()
    count, most = 40, _transit.WAITING_BYTES_MAX // (8 * LARGE) + 1
    sender = threading.Thread(target=lambda: [here.send(np.full(LARGE, number)) for number in range(count)], daemon=True)
    sender.start()
    eventually("the most that may wait is lent", lambda: len(in_transit(installed)) == most)
    sender.join(3)
    assert sender.is_alive() and len(in_transit(installed)) == most
    found = [there.recv() for _ in range(count)]
    sender.join(60)
    assert [int(array[-1]) for array in found] == list(range(count)) and sum(map(is_leased, found)) > most
    assert not in_transit(installed)


def test_the_arrays_of_a_message_are_lent_together(installed):
    here, there = multiprocessing.Pipe()
    here.send([np.full(LARGE, number) for number in range(20)])
    assert len(in_transit(installed)) == 20
    assert [int(array[-1]) for array in there.recv()] == list(range(20)) and not in_transit(installed)


def flood():
    """Sends datagrams that are not receipts to the socket, until its owner closes it."""
    names = [line.split()[-1] for line in pathlib.Path("/proc/net/unix").read_text().splitlines()]
    (address,) = [name for name in names if name.startswith(f"@tensorlend/{_transit._prefix}")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:

        def is_closed():
            try:
                stranger.sendto(bytes(28), "\0" + address[1:])
            except BrokenPipeError:
                return True
            return False

        assert not is_closed()
        eventually("the socket is closed", is_closed)


def test_datagrams_that_are_no_receipts(installed):
    """Every process of the machine can send to the socket. After too many of them the socket is closed, and messages take
    requests again."""
    here, there = multiprocessing.Pipe()
    here.send(np.arange(LARGE))
    flood()
    assert len(in_transit(installed)) == 1
    assert there.recv()[-1] == LARGE - 1 and not in_transit(installed)
    here.send(np.arange(LARGE))
    assert is_leased(there.recv()) and not in_transit(installed)


def test_a_fork_after_strangers_have_closed_the_socket(installed):
    """A child does not close the number that its parent's socket had."""
    here, there = multiprocessing.Pipe()
    here.send(np.arange(LARGE))
    there.recv()
    flood()

    def has_thread():
        try:
            return any(comm.read_text() == "tensorlend-mail\n" for comm in pathlib.Path("/proc/self/task").glob("*/comm"))
        except OSError:
            return True  # Another thread has ended between the two calls.

    eventually("its thread ends", lambda: not has_thread())

    def work():
        files = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]  # One gets the number of the socket.
        installed.stat()  # Opens the child's session, and drops the parent's.
        return [os.fstat(file).st_rdev for file in files]

    assert len(set(in_child(work))) == 1


def test_clients_in_turn_leave_nothing_for_the_end_of_the_process(broker):
    here, there = multiprocessing.Pipe()
    before = len(multiprocessing.util._finalizer_registry)
    for _ in range(3):
        client = broker.connect()
        tensorlend.multiprocessing.install(client=client)
        here.send(np.arange(LARGE))
        there.recv()
        tensorlend.multiprocessing.uninstall()
        client.close()
        del client
        gc.collect()
    assert len(multiprocessing.util._finalizer_registry) <= before + 1
