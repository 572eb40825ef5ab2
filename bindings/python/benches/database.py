"""A tensor database next to the application, from Python: the throughput and the aggregation of SmartSim's scaling study.

    python database.py [--out STEM] [--quick]

Throughput: client processes put a float32 array under a key of their own, overwriting it, 100 times, then unpack it 100 times
into an array of theirs. Aggregation: datasets of four tensors are appended to a list; the consumer polls its length, reads all
of them (timed), and deletes the list. Contenders: tensorlend, tensorlend.smartredis, redis-py with redis-server on a Unix
socket, and the smartredis package where it is installed (Python 3.11 or older, numpy below 2) and its server has RedisAI, without
which that package cannot store a tensor.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorlend
from measure import Row, daemon, interleaved, left_out, parser, redis_server, row, save, seconds, together

SIZES = [1024, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1024000, 2048000, 4096000]
ITERATIONS = 100
REFERENCE = "tensorlend"


#: A class of which each client process makes an object. Its methods put and unpack an array, append datasets to a list, and return the
#: length of the list, read it, and delete it. `read` reads every tensor, and returns the number of datasets.
Kind = type[Any]


class Lend:
    name = "tensorlend"

    def __init__(self) -> None:
        self.client = tensorlend.connect(os.environ["TENSORLEND_SOCKET"])

    def put(self, key: str, array: np.ndarray) -> None:
        self.client.put(key, array)

    def unpack(self, key: str, out: np.ndarray) -> None:
        self.client.get_into(key, out)

    def append(self, items: str, number: int, tensors: dict[str, np.ndarray]) -> None:
        self.client.append(items, tensors)

    def length(self, items: str) -> int:
        return self.client.length(items)

    def read(self, items: str) -> int:
        found = self.client.get_all(items)
        return sum(1 for dataset in found if [tensor.numpy() for tensor in dataset.values()])

    def delete(self, items: str) -> None:
        self.client.clear(items)


class SmartRedis:
    """Either package: they have one interface."""

    package = ""
    #: The environment variable with the socket of the database.
    variable = ""

    def __init__(self) -> None:
        os.environ["SSDB"] = f"unix://{os.environ[self.variable]}"
        module = __import__(self.package, fromlist=["Client"])
        self.dataset = module.Dataset
        self.client = module.Client(False, logger_name="bench")

    def put(self, key: str, array: np.ndarray) -> None:
        self.client.put_tensor(key, array)

    def unpack(self, key: str, out: np.ndarray) -> None:
        np.copyto(out, self.client.get_tensor(key))

    def append(self, items: str, number: int, tensors: dict[str, np.ndarray]) -> None:
        dataset = self.dataset(f"{items}_{number}")
        for name, tensor in tensors.items():
            dataset.add_tensor(name, tensor)
        self.client.put_dataset(dataset)
        self.client.append_to_list(items, dataset)

    def length(self, items: str) -> int:
        return int(self.client.get_list_length(items))

    def read(self, items: str) -> int:
        found = self.client.get_datasets_from_list(items)
        return sum(1 for dataset in found if [dataset.get_tensor(name) for name in dataset.get_tensor_names()])

    def delete(self, items: str) -> None:
        self.client.delete_list(items)


class Ours(SmartRedis):
    name = "tensorlend.smartredis"
    package = "tensorlend.smartredis"
    variable = "TENSORLEND_SOCKET"


class Original(SmartRedis):
    name = "smartredis 0.6.1 and Redis"
    package = "smartredis"
    variable = "BENCH_REDIS"


class Redis:
    name = "redis-py and Redis"

    def __init__(self) -> None:
        import redis

        self.client = redis.Redis(unix_socket_path=os.environ["BENCH_REDIS"])

    def put(self, key: str, array: np.ndarray) -> None:
        self.client.set(key, array.data.cast("B"))

    def unpack(self, key: str, out: np.ndarray) -> None:
        np.copyto(out, np.frombuffer(self.client.get(key), np.float32))

    def append(self, items: str, number: int, tensors: dict[str, np.ndarray]) -> None:
        self.client.rpush(items, pickle.dumps(tensors, protocol=5))

    def length(self, items: str) -> int:
        return int(self.client.llen(items))

    def read(self, items: str) -> int:
        return sum(1 for item in self.client.lrange(items, 0, -1) if list(pickle.loads(item).values()))

    def delete(self, items: str) -> None:
        self.client.delete(items)


CONTENDERS: list[Kind] = [Lend, Ours, Redis, Original]


def available(missing: dict[str, str]) -> list[Kind]:
    found = []
    for kind in CONTENDERS:
        try:
            probe = kind()
            probe.put("probe", np.zeros(1, np.float32))
            found.append(kind)
        except Exception as error:
            missing[kind.name] = f"{type(error).__name__}: {error}"
    return found


def clients(kind: Kind, count: int, nbytes: int) -> list[list[list[float]]]:
    """Returns the seconds of each put and of each unpack of all client processes, which begin together."""

    def work(number: int) -> Callable[[], list[list[float]]]:
        contender, key = kind(), f"array{number}"
        array, out = np.random.rand(nbytes // 4).astype(np.float32), np.zeros(nbytes // 4, np.float32)
        steps: list[Callable[[], None]] = [lambda: contender.put(key, array), lambda: contender.unpack(key, out)]
        for step in steps:
            step()

        def all_of() -> list[list[float]]:
            took = [[seconds(step) for _ in range(ITERATIONS)] for step in steps]
            assert np.array_equal(array, out)
            return took

        return all_of

    return together(count, work)


def throughput(kinds: list[Kind], quick: bool) -> list[Row]:
    rows = []
    for count in (1, 2, 8):
        for nbytes in SIZES[:: 5 if quick else 1]:
            taken = interleaved(kinds, 1 if quick else 3, lambda kind: clients(kind, count, nbytes), warm=0)
            for kind, rounds in taken.items():
                for at, step in enumerate(("put", "unpack")):
                    all_of = [s for clients_of in rounds for client in clients_of for s in client[at]]
                    rows.append(row(f"{step}, {count} clients", kind.name, nbytes, all_of))
    return rows


def aggregation(kinds: list[Kind], quick: bool) -> list[Row]:
    rows = []
    for count, nbytes in ((32, 1024), (512, 1024), (32, 1024000)):
        made = {kind: kind() for kind in kinds}
        tensors = {f"t{i}": np.ones(nbytes // 4, np.float32) for i in range(4)}

        def once(kind: Kind) -> float:
            contender = made[kind]
            for number in range(count):
                contender.append("list", number, tensors)
            while contender.length("list") < count:
                time.sleep(0)
            began = time.perf_counter()
            assert contender.read("list") == count
            took = time.perf_counter() - began
            contender.delete("list")
            return took

        taken = interleaved(kinds, 2 if quick else 10, once)
        rows += [row(f"reading a list of {count} datasets of 4 tensors", kind.name, nbytes, took) for kind, took in taken.items()]
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--out", type=Path, default=Path("python-database"))
    options.add_argument("--quick", action="store_true")
    arguments = options.parse_args()
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        os.environ["BENCH_REDIS"] = f"{folder}/redis.sock"
        os.environ.update(SR_DB_TYPE="Standalone", SR_LOG_LEVEL="QUIET", SR_CONN_TIMEOUT="5")
        with contextlib.suppress(ImportError):
            servers.enter_context(redis_server(folder))
        # A process of its own, as the study's database is.
        servers.enter_context(daemon(Path(folder)))
        kinds = available(missing)
        rows = throughput(kinds, arguments.quick) + aggregation(kinds, arguments.quick)
    save(arguments.out, "A tensor database next to the application, from Python", rows, REFERENCE, left_out(missing))


if __name__ == "__main__":
    main()
