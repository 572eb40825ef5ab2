"""Ray's actors send tensors as leases."""

import os
import pickle
import signal

import pytest
from programs import succeeds
from waiting import eventually

torch = pytest.importorskip("torch", reason="torch is not installed")
ray = pytest.importorskip("ray", reason="ray is not installed")
transport = pytest.importorskip("tensorlend.ray", reason="this version of ray has no register_tensor_transport")

import tensorlend

PATIENCE = 120
LENT = {"tensor_transport": "tensorlend"}


@pytest.fixture(scope="module")
def lender():
    """A client of the daemon through which the actors of this module send."""
    with tensorlend.embedded() as broker, broker.connect(label="test") as client:
        transport.install(client=client)
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False, object_store_memory=200 << 20)
        yield client
        ray.shutdown()


def actor():
    """The class of the actors. Ray checks the transport's name when it is defined."""

    class Actor:
        """Makes tensors, and says what it sees."""

        def __init__(self):
            self.kept = []

        def pid(self):
            return os.getpid()

        @ray.method(**LENT)
        def make(self, value, length=1000):
            self.mine = torch.full((length,), float(value))
            return self.mine

        @ray.method(**LENT)
        def several(self):
            return {"half": torch.ones(3, dtype=torch.bfloat16), "name": "x", "rest": [torch.arange(6).reshape(2, 3).T, torch.tensor(5)]}

        @ray.method(**LENT)
        def sparse(self):
            return torch.eye(3).to_sparse()

        def change(self, value):
            self.mine.fill_(value)

        def total(self, tensor, add=0):
            tensor += add
            return float(tensor.sum())

        def described(self, value):
            return {"half": value["half"].dtype, "rest": [part.tolist() for part in value["rest"]], "name": value["name"]}

        def keep(self, tensor):
            self.kept.append(tensor)

        def kept_total(self):
            return float(sum(tensor.sum() for tensor in self.kept))

        def total_of(self, refs):
            return float(sum(ray.get(ref).sum() for ref in refs))

    return Actor


def actors(number, **options):
    made = [ray.remote(actor()).options(num_cpus=0, **options).remote() for _ in range(number)]
    ray.get([actor.pid.remote() for actor in made])
    return made


def test_actor_to_actor(lender):
    producer, receiver = actors(2)
    ref = producer.make.remote(2)
    assert ray.get(receiver.total.remote(ref)) == 2000.0
    assert len(lender.list("transit/*")) == 1
    del ref
    eventually("the end of the names", lambda: not lender.list("transit/*"))
    ref = producer.several.remote()
    assert ray.get(receiver.described.remote(ref)) == {
        "half": torch.bfloat16, "rest": [[[0, 3], [1, 4], [2, 5]], 5], "name": "x"
    }  # fmt: skip


def test_each_receiver_has_its_own(lender):
    """An object that is received several times, also by the driver, and that is not received at all."""
    producer, one, other = actors(3)
    ref = producer.make.remote(1)
    assert ray.get([one.total.remote(ref, 5), other.total.remote(ref, 1), one.total.remote(ref)]) == [6000.0, 2000.0, 1000.0]
    mine = ray.get(ref)
    mine += 1
    assert float(ray.get(ref).sum()) == 1000.0 and float(mine.sum()) == 2000.0
    # The object is a snapshot: the producer may write to its tensor.
    ray.get(producer.change.remote(9))
    assert ray.get(other.total.remote(ref)) == 1000.0
    never = producer.make.remote(3)
    ray.wait([never], fetch_local=False)
    del ref, never
    eventually("the end of the names", lambda: not lender.list("transit/*"))


def test_references_within_an_object(lender):
    producer, receiver = actors(2)
    refs = [ray.put(torch.full((1000,), float(number)), _tensor_transport="tensorlend") for number in range(3)]
    assert ray.get(receiver.total_of.remote(refs)) == 3000.0
    assert len(lender.list("transit/*")) == 3
    del refs
    eventually("the end of the names", lambda: not lender.list("transit/*"))
    del producer


def test_targets(lender):
    (producer,) = actors(1)
    target = torch.zeros(1000)
    ref = producer.make.remote(7)
    ray.experimental.set_target_for_ref(ref, [target])
    assert ray.get(ref) is target and float(target.sum()) == 7000.0


class Direct(transport.LeaseTransport):
    """A transport without Ray around it."""

    mode = "cow"


def test_an_object_that_is_described_again(broker, client):
    """Ray does this if a reply was lost, and the task was repeated in the same process."""
    Direct.daemon = (tuple(map(os.fspath, client.address)), client.namespace)
    sender = Direct()
    tensors = [torch.arange(10), torch.ones(0), torch.tensor(2.5)]
    lent = sender.extract_tensor_transport_metadata("one", tensors)
    assert sender.extract_tensor_transport_metadata("one", tensors) is lent and len(client.list("transit/*")) == 3
    found = Direct().recv_multiple_tensors("one", lent, sender.get_communicator_metadata(None, None))
    assert all(torch.equal(*both) for both in zip(found, tensors, strict=True))
    sender.garbage_collect("one", lent, tensors)
    sender.garbage_collect("one", lent, tensors)
    assert not client.list("transit/*") and found[0].tolist() == list(range(10))
    with pytest.raises(tensorlend.NotFoundError, match="gone"):
        Direct().recv_multiple_tensors("one", lent, None)


def test_a_reference_brings_the_transport(broker, client, script):
    """Ray may pass a reference to an actor before it has registered the transport there."""
    Direct.daemon = (tuple(map(os.fspath, client.address)), client.namespace)
    sender = Direct()
    lent = sender.extract_tensor_transport_metadata("one", [torch.arange(10)])
    source = """
import pickle, sys
lent = pickle.loads(bytes.fromhex(sys.argv[1]))
from ray.experimental.rdt.util import get_tensor_transport_manager
(found,) = get_tensor_transport_manager("TENSORLEND").recv_multiple_tensors("one", lent, None)
found += 1
print(found.tolist())
"""
    assert script(source, pickle.dumps(lent).hex(), timeout=PATIENCE).stdout == f"{list(range(1, 11))}\n"
    sender.garbage_collect("one", lent, [])


def test_no_memory():
    with tensorlend.embedded('pool.bytes_max = "64MiB"') as broker, broker.connect() as client:
        Direct.daemon = (tuple(map(os.fspath, client.address)), client.namespace)
        with pytest.raises(tensorlend.LimitError):
            Direct().extract_tensor_transport_metadata("one", [torch.zeros(1000), torch.zeros(64 << 20)])
        assert not client.list("transit/*")


def test_a_killed_producer(lender):
    """Its receivers keep what they have, and its objects are lost."""
    producer, receiver = actors(2)
    ref = producer.make.remote(4)
    ray.get(receiver.keep.remote(ref))
    os.kill(ray.get(producer.pid.remote()), signal.SIGKILL)
    eventually("the end of the names", lambda: not lender.list("transit/*"))
    assert ray.get(receiver.kept_total.remote()) == 4000.0
    with pytest.raises(tensorlend.NotFoundError, match="gone: the actor that made them has ended"):
        ray.get(ref)
    with pytest.raises(tensorlend.NotFoundError, match="gone: the actor that made them has ended") as caught:
        ray.get(receiver.total.remote(ref))
    assert isinstance(caught.value, ray.exceptions.RayTaskError)
    assert ray.get(receiver.kept_total.remote()) == 4000.0


def test_errors(lender):
    (producer,) = actors(1)
    with pytest.raises(ray.exceptions.RayTaskError, match="dense CPU tensors"):
        ray.get(producer.sparse.remote())
    transport.install(client=lender)
    with pytest.raises(ValueError, match="already registered"):
        transport.install(client=lender, mode="read")


MODULE = """
import ray
import tensorlend.ray
import torch

tensorlend.ray.install()


@ray.remote(num_cpus=0)
class Camera:
    @ray.method(tensor_transport="tensorlend")
    def picture(self, number):
        return torch.full((1000,), number)


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Meter:
    def total(self, picture):
        return int(picture.sum())
"""
PROGRAM = """
import ray
import tensorlend
from cameras import Camera, Meter

if __name__ == "__main__":
    tensorlend.ray.install()
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    camera, meter = Camera.remote(), Meter.remote()
    print(ray.get([meter.total.remote(camera.picture.remote(n)) for n in range(3)]))
"""


@pytest.mark.parametrize("runs", [True, False], ids=["with a daemon", "without"])
def test_actors_of_a_module(tmp_path, broker, runs):
    (tmp_path / "cameras.py").write_text(MODULE)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TENSORLEND_SOCKET", "RAY_"))}
    if runs:
        environment["TENSORLEND_SOCKET"] = broker.address
    done = succeeds(tmp_path / "program.py", env=environment)
    assert done.stdout.splitlines()[-1] == "[0, 1000, 2000]", done.stdout + done.stderr
