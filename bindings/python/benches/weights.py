"""A file of weights in several server processes: `tensorlend.torch.load_file`, and safetensors' own `load_file`, which maps the file.

python benches/weights.py [--gib N] [--servers N] [--rounds N] [--numpy] [--json FILE]

The contenders take turns. Each round forks new processes; in each, one byte of every page is read after the load. PSS counts a page that N
processes have mapped as an Nth of a page in each; the figure is its growth since all processes have started. The file is in the page cache.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import PAGE, described, parser, pss, spread, write

import tensorlend

TENSORS = 16
FORK = multiprocessing.get_context("fork")


def loader(contender: str, library: str, client: Any) -> Any:
    """The function that loads a file."""
    name = "tensorlend" if contender == "tensorlend" else "safetensors"
    load = importlib.import_module(f"{name}.{library}").load_file
    return functools.partial(load, client=client) if client else load


def serve(contender: str, library: str, socket: str, pipe: Any) -> None:
    """A server: answers each message with figures."""
    client = tensorlend.connect(socket) if contender == "tensorlend" else None
    load = loader(contender, library, client)
    pipe.send("ready")
    path = pipe.recv()
    # All servers have started, so the pages that they share with their parent count equally from here on.
    before = pss("self")
    began = time.perf_counter()
    tensors = load(path)
    loaded = time.perf_counter()
    arrays = [value if isinstance(value, np.ndarray) else value.numpy() for value in tensors.values()]
    total = sum(int(array.reshape(-1).view(np.uint8)[::PAGE].sum()) for array in arrays)
    touched = time.perf_counter()
    pipe.send({"load_s": loaded - began, "touch_s": touched - loaded, "first": min(float(a.reshape(-1)[0]) for a in arrays), "sum": total})
    pipe.recv()
    pipe.send(pss("self") - before)
    pipe.recv()


class Server:
    """A server process. It is forked, so that all have imported the same already."""

    def __init__(self, contender: str, path: Path, library: str, socket: str) -> None:
        self.path = str(path)
        self.pipe, there = FORK.Pipe()
        self.process = FORK.Process(target=serve, args=(contender, library, socket, there), daemon=True)
        self.process.start()
        self.pipe.recv()

    def ask(self) -> Any:
        self.pipe.send(self.path)
        return self.pipe.recv()

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def write_weights(path: Path, nbytes: int, first: float) -> None:
    """Writes a file next to the path, and puts it in its place."""
    from safetensors.numpy import save_file

    count = nbytes // TENSORS // 4
    arrays = {f"layer.{n}": np.full(count, first + n, np.float32) for n in range(TENSORS)}
    save_file(arrays, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def main() -> None:
    options = parser(__doc__, rounds=5)
    options.add_argument("--gib", type=float, default=1.0)
    options.add_argument("--servers", type=int, default=4)
    options.add_argument("--numpy", action="store_true")
    options.add_argument("--json", type=Path)
    arguments = options.parse_args()
    library = "numpy" if arguments.numpy else "torch"
    for contender in ("tensorlend", "safetensors"):
        loader(contender, library, None)
    nbytes = int(arguments.gib * (1 << 30))
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder, tensorlend.embedded() as broker, broker.connect() as client:
        path = Path(folder) / "model.safetensors"
        write_weights(path, nbytes, 1)
        for number in range(arguments.rounds):
            for contender in ("tensorlend", "safetensors"):
                of = found.setdefault(contender, {})
                servers = [Server(contender, path, library, broker.address) for _ in range(arguments.servers)]
                figures = [server.ask() for server in servers]
                of.setdefault("load of the first, ms", []).append(figures[0]["load_s"] * 1e3)
                of.setdefault("load of the second, ms", []).append(figures[1]["load_s"] * 1e3)
                of.setdefault("first use of all pages in the second, ms", []).append(figures[1]["touch_s"] * 1e3)
                of.setdefault("PSS of all, GiB", []).append(sum(server.ask() for server in servers) / (1 << 30))
                write_weights(path, nbytes, 100 * number + 101)
                newer = Server(contender, path, library, broker.address)
                assert newer.ask()["first"] == 100 * number + 101, "an old file was loaded"
                for server in [*servers, newer]:
                    server.end()
            for info in client.list("weights/*"):
                client.delete(info.name)
    print(described(library), end="\n\n")
    print(f"| {arguments.servers} servers, {arguments.gib:g} GiB | tensorlend | safetensors |")
    print("|---|---:|---:|")
    for what in found["tensorlend"]:
        print(f"| {what} | {' | '.join(spread(of[what]) for of in found.values())} |")
    facts = {"library": library, "gib": arguments.gib, "servers": arguments.servers, "rounds": arguments.rounds}
    write(arguments.json, **facts, figures=found)


if __name__ == "__main__":
    main()
