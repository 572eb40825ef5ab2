"""A tensor database next to the application, from Python: the throughput and the aggregation of SmartSim's scaling study.

    python database.py [--out STEM] [--quick]

Throughput: client processes put a float32 array under a key of their own, overwriting it, 100 times, then unpack it 100 times
into an array of theirs. Aggregation: datasets of four tensors are appended to a list; the consumer polls its length, reads all
of them (timed), and deletes the list. Contenders: tensorlend, tensorlend.smartredis, redis-py with redis-server on a Unix
socket, and the smartredis package where it is installed (Python 3.11 or older, numpy below 2) and its server has RedisAI, without
which that package cannot store a tensor.
"""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorlend
from measure import Row, row, save

SIZES = [1024, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1024000, 2048000, 4096000]
ITERATIONS = 100
REFERENCE = "tensorlend"


class Contender:
    """Made anew in each client process."""

    name = ""

    def put(self, key: str, array: np.ndarray) -> None:
        raise NotImplementedError

    def unpack(self, key: str, out: np.ndarray) -> None:
        raise NotImplementedError

    def append(self, items: str, number: int, tensors: dict[str, np.ndarray]) -> None:
        raise NotImplementedError

    def length(self, items: str) -> int:
        raise NotImplementedError

    def read(self, items: str) -> int:
        """Reads every tensor of every dataset of the list; how many datasets there were."""
        raise NotImplementedError

    def delete(self, items: str) -> None:
        raise NotImplementedError


class Lend(Contender):
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


class SmartRedis(Contender):
    """Either package: they have one interface."""

    package = ""

    def database(self) -> str:
        """Where it is told that its database is."""
        raise NotImplementedError

    def __init__(self) -> None:
        os.environ["SSDB"] = self.database()
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

    def database(self) -> str:
        return f"unix://{os.environ['TENSORLEND_SOCKET']}"


class Original(SmartRedis):
    name = "smartredis 0.6.1 and Redis"
    package = "smartredis"

    def database(self) -> str:
        return f"unix://{os.environ['BENCH_REDIS']}"


class Redis(Contender):
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


CONTENDERS: list[type[Contender]] = [Lend, Ours, Redis, Original]


def available(missing: dict[str, str]) -> list[type[Contender]]:
    found = []
    for kind in CONTENDERS:
        try:
            probe = kind()
            probe.put("probe", np.zeros(1, np.float32))
            found.append(kind)
        except Exception as error:
            missing[kind.name] = f"{type(error).__name__}: {error}"
    return found


def clients(kind: type[Contender], count: int, nbytes: int, iterations: int) -> tuple[list[float], list[float]]:
    """Seconds of every put and every unpack of all client processes, which begin together."""
    start, begin = os.pipe()
    ends = []
    for number in range(count):
        reader, writer = os.pipe()
        if os.fork() == 0:
            status = 1
            try:
                os.close(begin)
                contender, key = kind(), f"array{number}"
                array, out = np.random.rand(nbytes // 4).astype(np.float32), np.zeros(nbytes // 4, np.float32)
                contender.put(key, array)
                contender.unpack(key, out)
                os.write(writer, b"r")
                os.read(start, 1)
                took: list[list[float]] = []
                steps: list[Callable[[], None]] = [lambda: contender.put(key, array), lambda: contender.unpack(key, out)]
                for step in steps:
                    took.append([])
                    for _ in range(iterations):
                        began = time.perf_counter()
                        step()
                        took[-1].append(time.perf_counter() - began)
                assert np.array_equal(array, out)
                os.write(writer, pickle.dumps(took))
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        ends.append(reader)
    for reader in ends:
        assert os.read(reader, 1) == b"r", f"a client of {kind.name} has failed"
    os.close(start)
    os.close(begin)
    puts, unpacks = [], []
    for reader in ends:
        with os.fdopen(reader, "rb") as file:
            put, unpack = pickle.loads(file.read())
        puts += put
        unpacks += unpack
    for _ in ends:
        os.wait()
    return puts, unpacks


def throughput(kinds: list[type[Contender]], quick: bool) -> list[Row]:
    rows = []
    for count in (1, 2, 8):
        for nbytes in SIZES[:: 5 if quick else 1]:
            taken: dict[str, tuple[list[float], list[float]]] = {kind.name: ([], []) for kind in kinds}
            for _ in range(1 if quick else 3):
                for kind in kinds:
                    for all_of, some in zip(taken[kind.name], clients(kind, count, nbytes, ITERATIONS), strict=True):
                        all_of += some
            for name, (puts, unpacks) in taken.items():
                rows.append(row(f"put, {count} clients", name, nbytes, puts))
                rows.append(row(f"unpack, {count} clients", name, nbytes, unpacks))
    return rows


def aggregation(kinds: list[type[Contender]], quick: bool) -> list[Row]:
    rows = []
    for count, nbytes in ((32, 1024), (512, 1024), (32, 1024000)):
        made = {kind: kind() for kind in kinds}
        taken: dict[type[Contender], list[float]] = {kind: [] for kind in kinds}
        tensors = {f"t{i}": np.ones(nbytes // 4, np.float32) for i in range(4)}
        for turn in range(3 if quick else 11):
            for kind, contender in made.items():
                items = f"list{turn}"
                for number in range(count):
                    contender.append(items, number, tensors)
                while contender.length(items) < count:
                    time.sleep(0)
                began = time.perf_counter()
                assert contender.read(items) == count
                if turn:
                    taken[kind].append(time.perf_counter() - began)
                contender.delete(items)
        rows += [row(f"reading a list of {count} datasets of 4 tensors", kind.name, nbytes, took) for kind, took in taken.items()]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("python-database"))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    missing: dict[str, str] = {}
    server: Any = None
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BENCH_REDIS"] = path = f"{folder}/redis.sock"
        os.environ.update(SR_DB_TYPE="Standalone", SR_LOG_LEVEL="QUIET", SR_CONN_TIMEOUT="5")
        if shutil.which("redis-server"):
            # The honest opponent: without these, glibc maps and unmaps every large value.
            tuned = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
            command = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
            server = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **tuned})
            while not os.path.exists(path):
                time.sleep(0.01)
        # A process of its own, as the study's database is.
        socket = f"{folder}/tensorlend.sock"
        config = Path(folder, "config.toml")
        config.write_text('[pool]\nbytes_max = "4GiB"\n')
        daemon = subprocess.Popen(["tensorlendd", "--socket", socket, "--config", str(config)], stderr=subprocess.DEVNULL)
        os.environ["TENSORLEND_SOCKET"] = socket
        while not os.path.exists(socket):
            time.sleep(0.01)
        try:
            kinds = available(missing)
            rows = throughput(kinds, arguments.quick) + aggregation(kinds, arguments.quick)
        finally:
            for process in (daemon, server):
                if process is not None:
                    process.terminate()
                    process.wait()
    notes = [f"Left out: {name} ({why.splitlines()[0]})." for name, why in missing.items()]
    save(arguments.out, "A tensor database next to the application, from Python", rows, REFERENCE, notes)


if __name__ == "__main__":
    main()
