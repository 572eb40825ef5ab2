"""Inference next to the data: put an image of 224 x 224 x 3 float32, prepare it, run ResNet-50, unpack 4,000 bytes.

    chrt -f 10 python bindings/python/benches/inference.py --runner target/release/tensorlend-runner

The same model, in the same ONNX Runtime, on one thread each, in three ways: in each client's own process (the floor); by two
processes of tensorlend-runner; and through Redis, in the manner of RedisAI: a client sets the image and pushes a request to a list,
one of two worker processes pops it, runs the model and pushes the answer to the client's own list. Beside ResNet-50 a model which
computes next to nothing, so that the exchange is what is seen. Exchange is a call less what the model took, call by call. With --rten
also by runners that have the engine that is built in, rten, in place of ONNX Runtime.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import util
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
from measure import Row, daemon, interleaved, parser, redis_server, row, running, save, together

import tensorlend

MEAN, DEVIATION = np.array([0.485, 0.456, 0.406], "f4"), np.array([0.229, 0.224, 0.225], "f4")
STEPS: list[Any] = [{"normalize": {"mean": MEAN.tolist(), "std": DEVIATION.tolist()}}, "chw", "batch"]
WORKERS = 2
#: Names of the parts of a round, in their order.
PARTS = ["put", "preprocess", "run_model", "unpack"]
CLIENTS = [1, 8, 28]
BATCH = 8


def prepared(image: np.ndarray) -> np.ndarray:
    """What the steps do, by numpy."""
    return np.ascontiguousarray(((image - MEAN) / DEVIATION).transpose(2, 0, 1)[None])


def models(folder: Path) -> dict[str, str]:
    """Files: ResNet-50 as the package onnx has it; the same with an open first dimension; one that computes the mean of each channel;
    one that computes nothing, for the steps before it."""
    resnet = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
    batched = onnx.load(resnet)
    weights = {weight.name for weight in batched.graph.initializer}
    for port in [*batched.graph.input, *batched.graph.output]:
        if port.name not in weights:
            port.type.tensor_type.shape.dim[0].dim_param = "N"
    for weight in batched.graph.initializer:
        if onnx.numpy_helper.to_array(weight).tolist() == [1, 2048]:
            weight.CopyFrom(onnx.numpy_helper.from_array(np.array([-1, 2048], "i8"), weight.name))
    files = {"ResNet-50": str(resnet)}
    made = {
        "ResNet-50, open": batched,
        "mean of channels": graph("GlobalAveragePool", [1, 3, 224, 224], [1, 3, 1, 1]),
        "nothing": graph("Identity", [1, 3, 224, 224], [1, 3, 224, 224]),
    }
    for name, model in made.items():
        files[name] = str(folder / f"{name.replace(' ', '-').replace(',', '')}.onnx")
        onnx.save(model, files[name])
    return files


def graph(kind: str, takes: list[int], gives: list[int]) -> onnx.ModelProto:
    """Of one node."""
    port = onnx.helper.make_tensor_value_info
    made = onnx.helper.make_graph(
        [onnx.helper.make_node(kind, ["x"], ["y"])],
        kind,
        [port("x", onnx.TensorProto.FLOAT, takes)],
        [port("y", onnx.TensorProto.FLOAT, gives)],
    )
    return onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


class Engine:
    """A model in this process, on one thread, as both workers have it."""

    def __init__(self, file: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.name = self.session.get_inputs()[0].name

    def run(self, image: np.ndarray) -> np.ndarray:
        return self.session.run(None, {self.name: image})[0]


class Contender:
    """One client of one way to have a model run."""

    name: str

    def __init__(self, number: int, model: str, file: str) -> None: ...

    @staticmethod
    def ready(file: str) -> None:
        """What all clients share, in the process that they are made of."""

    def put(self, image: np.ndarray) -> None:
        """Hands an image on."""

    def preprocess(self) -> None:
        """Has it prepared."""

    def run_model(self) -> float | None:
        """Has the model run on what was prepared; what the model took of that, in seconds, if it is told."""

    def unpack(self, out: np.ndarray) -> None:
        """Copies the answer."""


class InProcess(Contender):
    name = "in the client's own process"

    engines: ClassVar[dict[str, Engine]] = {}

    def __init__(self, number: int, model: str, file: str) -> None:
        self.engine = self.engines[file]

    @staticmethod
    def ready(file: str) -> None:
        # Loaded once, before the forks: with one thread an engine has no threads that a fork would lose.
        if file not in InProcess.engines:
            InProcess.engines[file] = Engine(file)

    def put(self, image: np.ndarray) -> None:
        self.image = image

    def preprocess(self) -> None:
        self.image = prepared(self.image)

    def run_model(self) -> float | None:
        self.answer = self.engine.run(self.image)
        return None

    def unpack(self, out: np.ndarray) -> None:
        np.copyto(out, self.answer)


class Lend(Contender):
    name = "tensorlend"
    #: The engine of the runners. The names of their models begin with it.
    engine = "onnxruntime"

    def __init__(self, number: int, model: str, file: str) -> None:
        self.client = tensorlend.connect(os.environ["TENSORLEND_SOCKET"])
        self.image, self.input, self.output = f"image/{number}", f"prepared/{number}", f"answer/{number}"
        self.steps, self.model = (self.client.model(f"{self.engine} {which}") for which in ("nothing", model))

    def put(self, image: np.ndarray) -> None:
        self.client.put(self.image, image)

    def preprocess(self) -> None:
        self.steps.run({"x": self.image}, {"y": self.input}, prepare={"x": STEPS}, timeout=600).release()

    def run_model(self) -> float | None:
        with self.model.run({"#0": self.input}, {"#0": self.output}, timeout=600) as answer:
            took: float = answer.metadata["run_us"]
        return took / 1e6

    def unpack(self, out: np.ndarray) -> None:
        self.client.get_into(self.output, out)


class Rten(Lend):
    name = "tensorlend, its own engine"
    engine = "rten"


class Redis(Contender):
    name = "Redis and a worker"

    def __init__(self, number: int, model: str, file: str) -> None:
        import redis

        self.client = redis.Redis(unix_socket_path=os.environ["BENCH_REDIS"], socket_timeout=None)
        self.image, self.input, self.output, self.line = (f"{word}/{number}" for word in ("image", "prepared", "answer", "line"))
        self.model = model

    def put(self, image: np.ndarray) -> None:
        self.client.set(self.image, image.data.cast("B"))

    def ask(self, what: str, takes: str, gives: str) -> float:
        self.client.rpush("requests", json.dumps([what, takes, gives, self.line]))
        _, took = self.client.blpop(self.line, 600)
        return float(took)

    def preprocess(self) -> None:
        self.ask("preprocess", self.image, self.input)

    def run_model(self) -> float | None:
        return self.ask(self.model, self.input, self.output)

    def unpack(self, out: np.ndarray) -> None:
        np.copyto(out, np.frombuffer(self.client.get(self.output), np.float32).reshape(out.shape))


def redis_worker(files: dict[str, str]) -> None:
    """Takes requests for ever."""
    import redis

    client = redis.Redis(unix_socket_path=os.environ["BENCH_REDIS"], socket_timeout=None)
    engines = {name: Engine(file) for name, file in files.items()}
    while True:
        _, request = client.blpop("requests")
        what, takes, gives, line = json.loads(request)
        values = np.frombuffer(client.get(takes), np.float32)
        began = time.perf_counter()
        if what == "preprocess":
            answer = prepared(values.reshape(224, 224, 3))
        else:
            answer = engines[what].run(values.reshape(1, 3, 224, 224))
        took = time.perf_counter() - began
        # Both commands in one round trip.
        with client.pipeline(transaction=False) as both:
            both.set(gives, answer.data.cast("B")).rpush(line, repr(took)).execute()


Times = dict[str, list[float]]


def clients(kind: type[Contender], count: int, model: str, file: str, rounds: int, shape: tuple[int, ...]) -> Times:
    """Seconds of each part, of all clients, and of the whole; and what the model took where that is told."""

    kind.ready(file)

    def work(number: int) -> Callable[[], Times]:
        contender = kind(number, model, file)
        image = np.random.default_rng(number).random((224, 224, 3), "f4")
        out = np.zeros(shape, "f4")
        parts: list[Callable[[], Any]] = [
            lambda: contender.put(image),
            contender.preprocess,
            contender.run_model,
            lambda: contender.unpack(out),
        ]

        def once() -> list[float]:
            at, alone = [time.perf_counter()], None
            for part in parts:
                told = part()
                alone = told if isinstance(told, float) else alone
                at.append(time.perf_counter())
            took = [later - earlier for earlier, later in zip(at, at[1:], strict=False)]
            return [*took, at[-1] - at[0], alone if alone is not None else float("nan")]

        # Twice, to warm up.
        for _ in range(2):
            once()

        def all_of() -> Times:
            taken = [once() for _ in range(rounds)]
            assert np.isfinite(out).all() and out.any()
            return {part: [one[at] for one in taken] for at, part in enumerate([*PARTS, "all of it", "alone"])}

        return all_of

    return joined(together(count, work))


def joined(found: list[Times]) -> Times:
    return {part: [s for one in found for s in one[part]] for part in found[0]}


@contextmanager
def forked(work: Callable[[], None], count: int) -> Iterator[None]:
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                work()
            finally:
                os._exit(1)
        pids.append(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def library() -> str:
    """ONNX Runtime's, of the package which the others use."""
    found = util.find_spec("onnxruntime")
    assert found is not None and found.origin is not None, "pip install onnxruntime"
    [path] = (Path(found.origin).parent / "capi").glob("libonnxruntime.so*")
    return str(path)


def runner(program: str, engine: str, *options: str) -> subprocess.Popen[bytes]:
    command = [program, "--model", f"{engine} *", "--threads", "1", *options]
    if engine == "onnxruntime":
        command += ["--onnxruntime", library()]
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DYLIB_PATH"}
    return subprocess.Popen(command, env={**environment, "TENSORLEND_LOG": "error"})


def put_model(name: str, file: str, **options: Any) -> tensorlend.Client:
    client = tensorlend.connect(os.environ["TENSORLEND_SOCKET"])
    client.put_model(name, Path(file).read_bytes(), **options)
    return client


def study(arguments: Any, files: dict[str, str], kinds: list[type[Contender]], notes: list[str]) -> list[Row]:
    """Every model, number of clients and way, in turns."""
    rows: list[Row] = []
    repeats = 1 if arguments.quick else 3
    ours = [kind for kind in kinds if issubclass(kind, Lend)]
    for kind in ours:
        put_model(f"{kind.engine} nothing", files["nothing"])
    studied = (("ResNet-50", (1, 1000), {1: 40, 8: 6, 28: 2}), ("mean of channels", (1, 3, 1, 1), {1: 400, 8: 100, 28: 40}))
    for model, shape, rounds_of in studied:
        for count in CLIENTS:
            clients_of = {kind.name: put_model(f"{kind.engine} {model}", files[model]) for kind in ours}
            rounds = max(rounds_of[count] // (4 if arguments.quick else 1), 2)
            with running(*(runner(arguments.runner, kind.engine) for kind in ours for _ in range(WORKERS))):
                runs = interleaved(kinds, repeats, lambda kind: clients(kind, count, model, files[model], rounds, shape), warm=0)
            taken = {kind.name: joined(found) for kind, found in runs.items()}
            for kind in ours:
                clients_of[kind.name].delete_model(f"{kind.engine} {model}")
            for part in [*PARTS, "all of it"]:
                rows += [row(f"{model}: {part}", name, count, times[part]) for name, times in taken.items()]
            if count == 1:
                notes.append(exchange(model, taken))
    return rows


def exchange(model: str, taken: dict[str, Times]) -> str:
    """What a call takes beside the model, call by call, by each way that has an exchange."""
    parts = []
    for name, times in taken.items():
        beside = [(call - alone) * 1e6 for call, alone in zip(times["run_model"], times["alone"], strict=True)]
        if np.isfinite(beside).all():
            call, ran = (statistics.median(times[which]) * 1e6 for which in ("run_model", "alone"))
            parts.append(
                f"{name} {statistics.median(beside):,.0f} us ({min(beside):,.0f} to {max(beside):,.0f}), which is "
                f"{100 * statistics.median(beside) / call:.2f} % of a call (run_model {call:,.0f} us, in which the model takes "
                f"{ran:,.0f} us)"
            )
    return f"* **Exchange, {model}, one client**: {'; '.join(parts)}."


def batches(arguments: Any, files: dict[str, str], notes: list[str]) -> list[Row]:
    """The engine alone at a batch, against as many clients whose requests the runner puts together, on as many threads."""
    model, rounds = "ResNet-50, open", 3 if arguments.quick else 12
    name_of_model = f"{Lend.engine} {model}"
    client = put_model(name_of_model, files[model])
    images = np.random.default_rng(0).random((BATCH, 3, 224, 224), "f4")

    def by_itself(_number: int) -> Callable[[], list[float]]:
        engine = Engine(files[model])
        engine.run(images)

        def once() -> list[float]:
            took = []
            for _ in range(rounds):
                began = time.perf_counter()
                engine.run(images)
                took.append((time.perf_counter() - began) / BATCH)
            return took

        return once

    def by_clients(number: int) -> Callable[[], list[float]]:
        own = tensorlend.connect(os.environ["TENSORLEND_SOCKET"])
        handle, name, image = own.model(name_of_model), f"image/{number}", images[number : number + 1]

        def once() -> None:
            own.put(name, image)
            handle.run({"#0": name}, timeout=600).release()

        for _ in range(2):
            once()

        def all_of() -> list[float]:
            ended = [time.perf_counter()]
            for _ in range(rounds):
                once()
                ended.append(time.perf_counter())
            # A round is a batch, so each client waits for all eight images.
            return [(later - earlier) / BATCH for earlier, later in zip(ended, ended[1:], strict=False)]

        return all_of

    alone_s: list[float] = []
    clients_s: list[float] = []
    with running(runner(arguments.runner, Lend.engine, "--batch-max", str(BATCH), "--batch-wait-ms", "100")):
        for _ in range(1 if arguments.quick else 3):
            alone_s += together(1, by_itself)[0]
            clients_s += [s for one in together(BATCH, by_clients) for s in one]
        time.sleep(1.5)
        [said] = client.model_statistics(name_of_model)
    client.delete_model(name_of_model)
    ratio = statistics.median(alone_s) / statistics.median(clients_s)
    full = said["batches"][BATCH - 1] if len(said["batches"]) >= BATCH else 0
    notes.append(
        f"* **Batches**: {BATCH} clients whose images are run together have {ratio:.3f} of the throughput of the engine alone at a "
        f"batch of {BATCH}, on one thread each ({1 / statistics.median(clients_s):.1f} and {1 / statistics.median(alone_s):.1f} "
        f"images a second); {full} of {said['runs']} runs had all {BATCH}."
    )
    what = f"ResNet-50: an image, in batches of {BATCH}"
    return [row(what, "the engine alone", 1, alone_s), row(what, "tensorlend", BATCH, clients_s)]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--out", type=Path, default=Path("inference"))
    options.add_argument("--runner", default="tensorlend-runner")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--rten", action="store_true", help="also with the engine that is built into the runner")
    arguments = options.parse_args()
    notes: list[str] = []
    kinds: list[type[Contender]] = [Lend, InProcess, *([Rten] if arguments.rten else [])]
    with tempfile.TemporaryDirectory() as name, daemon(folder := Path(name)):
        files = models(folder)
        os.environ["BENCH_REDIS"] = str(folder / "redis.sock")
        with ExitStack() as servers:
            try:
                servers.enter_context(redis_server(folder))
            except ImportError as error:
                notes.append(f"Left out: Redis ({error}).")
            else:
                of_study = {model: files[model] for model in ("ResNet-50", "mean of channels")}
                servers.enter_context(forked(lambda: redis_worker(of_study), WORKERS))
                kinds.append(Redis)
            rows = study(arguments, files, kinds, notes)
        rows += batches(arguments, files, notes)
    title = "Inference next to the data, from Python"
    save(arguments.out, title, rows, Lend.name, notes, columns=lambda n: f"{n} client{'s' * (n > 1)}")


if __name__ == "__main__":
    main()
