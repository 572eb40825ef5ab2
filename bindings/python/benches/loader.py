"""What a loader costs a trainer: epochs, `next` when the batch is already there and between two steps of training, modes, and
the end of the trainer.

    python benches/loader.py [--samples 16384] [--rounds 7] [--part epochs|steps|modes|ends]

Samples are (1, 28, 28) float32 with an int64 label, fetched one by one. Each figure is the median of the rounds, with the least
and the most; the methods take turns within a round, so that a busy machine hits all of them. Needs torch.
"""

import itertools
import multiprocessing
import statistics
import time

import torch
from measure import interleaved, parser, spread
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tensorlend.torch import SharedLoader

BATCHES = (64, 256, 1024)
#: Batches that are made ahead where `next` is timed.
AHEAD = 32
#: Seconds after which a trainer that does not end is killed.
LIMIT = 60


class Samples(Dataset):
    """Samples one by one, as most datasets have them."""

    def __init__(self, pictures, labels):
        self.pictures = pictures
        self.labels = labels

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return self.pictures[index], self.labels[index]


class Pickled:
    """What one writes without a loader: workers that put batches into a queue, which pickles them."""

    def __init__(self, pictures, labels, size, workers, ahead=2):
        self.count = -(-len(pictures) // size)
        self.orders = [multiprocessing.SimpleQueue() for _ in range(workers)]
        self.batches = multiprocessing.Queue(ahead * workers)
        arguments = (pictures, labels, size)
        for worker, order in enumerate(self.orders):
            job = (*arguments, range(worker, self.count, workers), order, self.batches)
            multiprocessing.Process(target=self.work, args=job, daemon=True).start()

    @staticmethod
    def work(pictures, labels, size, share, order, batches):
        torch.set_num_threads(1)
        while order.get():
            for batch in share:
                indices = range(batch * size, min((batch + 1) * size, len(pictures)))
                stacked = (torch.stack([part[i] for i in indices]).numpy() for part in (pictures, labels))
                batches.put(tuple(stacked))

    def __iter__(self):
        for order in self.orders:
            order.put(True)
        for _ in range(self.count):
            pictures, labels = self.batches.get()
            yield torch.from_numpy(pictures), torch.from_numpy(labels)


def methods(pictures, labels, size, ahead=2):
    """Loaders by name."""
    samples, tensors = Samples(pictures, labels), TensorDataset(pictures, labels)
    stay = {"persistent_workers": True, "prefetch_factor": ahead}
    return {
        "by reference, in process": [(pictures[at : at + size], labels[at : at + size]) for at in range(0, len(pictures), size)],
        "DataLoader, 0 workers": DataLoader(samples, size),
        "DataLoader, 2 workers": DataLoader(samples, size, num_workers=2, **stay),
        "multiprocessing.Queue, 2 workers": Pickled(pictures, labels, size, 2, ahead),
        "SharedLoader, 1 worker": SharedLoader(samples, size, 1, **stay),
        "SharedLoader, 2 workers": SharedLoader(samples, size, 2, **stay),
        "DataLoader, 1 worker, TensorDataset": DataLoader(tensors, size, num_workers=1, **stay),
        "SharedLoader, 1 worker, TensorDataset": SharedLoader(tensors, size, 1, **stay),
    }


def epoch(loader):
    """Seconds of an epoch of which the trainer reads every byte."""
    began = time.perf_counter()
    for pictures, _ in loader:
        pictures.sum()
    return time.perf_counter() - began


def nexts(loader):
    """Seconds of each `next` when the batch is there: all are made before the first is taken."""
    batches = iter(loader)
    time.sleep(0.5)
    taken = []
    for _ in range(AHEAD):
        began = time.perf_counter()
        batch = next(batches)
        taken.append(time.perf_counter() - began)
        del batch
    for _ in batches:
        pass
    return taken


def use(loader, work):
    """Seconds for each batch of an epoch in which the trainer does `work` with every batch."""
    began = time.perf_counter()
    for pictures, _ in loader:
        work(pictures)
    return (time.perf_counter() - began) / len(loader)


def modes(size, rounds):
    """Prints what mode="cow" costs compared with mode="read"."""
    data = TensorDataset(torch.rand(AHEAD * size, 1, 28, 28), torch.arange(AHEAD * size) % 10)
    loaders = {mode: SharedLoader(data, size, 1, mode=mode, persistent_workers=True, prefetch_factor=AHEAD) for mode in ("read", "cow")}
    works = {
        "nothing": dict.fromkeys(loaders, lambda pictures: None),
        "reads all": dict.fromkeys(loaders, lambda pictures: pictures.sum()),
        "adds 1 to all": {"read": lambda pictures: pictures + 1, "cow": lambda pictures: pictures.add_(1)},
    }

    def once(mode):
        loader = loaders[mode]
        return {"next": nexts(loader), **{name: [use(loader, work[mode])] for name, work in works.items()}}

    # The first round starts the workers and maps their memory.
    taken = interleaved(loaders, rounds, once)
    print(f"\nmodes, us for each batch of {size}; next: the batch is there; the others: the trainer's work in an epoch")
    for name in ["next", *works]:
        read, cow = ([value for one in taken[mode] for value in one[name]] for mode in loaders)
        ratio = statistics.median(cow) / statistics.median(read)
        print(f"  {name:16} read {spread(read, unit=1e6):>34}   cow {spread(cow, unit=1e6):>34}   {ratio:6.2f}x")
    for loader in loaders.values():
        loader.close()


def leave(kind, method, pipe):
    """A trainer that leaves an epoch unfinished. Its last line sends the time, from a clock that all processes share."""
    loader = kind(TensorDataset(torch.ones(4000, 3)), 4, num_workers=2, multiprocessing_context=method, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    globals()["kept"] = loader, batches
    pipe.send(time.monotonic())


def end(kind, method):
    """Seconds from a trainer's last line to its end."""
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=leave, args=(kind, method, there))
    process.start()
    there.close()
    last = here.recv()
    while process.exitcode is None and time.monotonic() < last + LIMIT:
        time.sleep(0.001)
    took = time.monotonic() - last
    if process.exitcode is None:
        process.kill()
    process.join()
    return took


def ends(rounds):
    """Prints how long a trainer takes to end, for each start method of the trainer and its two workers."""
    kinds, methods = {"SharedLoader": SharedLoader, "DataLoader": DataLoader}, ["fork", "spawn", "forkserver"]
    times = interleaved(itertools.product(methods, kinds), rounds, lambda it: end(kinds[it[1]], it[0]), warm=0)
    print("\nms from the trainer's last line to its end, persistent workers, an epoch unfinished")
    for method in methods:
        ours, theirs = (times[method, name] for name in kinds)
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"  {method:12} SharedLoader {spread(ours, unit=1e3):>28}   DataLoader {spread(theirs, unit=1e3):>28}   {ratio:6.2f}x")


class Slices:
    """Batches that are slices of the trainer's own tensors, which cost the least of all."""

    def __init__(self, pictures, labels, size):
        self.pictures, self.labels, self.size = pictures, labels, size

    def __iter__(self):
        for at in range(0, len(self.labels), self.size):
            yield self.pictures[at : at + self.size], self.labels[at : at + self.size]


def trainer():
    """Returns a function that trains a small model on one batch."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def learn(pictures, labels):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()

    return learn


def training(pictures, labels, size):
    """Seconds of an epoch of a small model on batches that lie in this process."""
    learn = trainer()
    began = time.perf_counter()
    for batch in Slices(pictures, labels, size):
        learn(*batch)
    return time.perf_counter() - began


def between(loader, learn, at_once):
    """Seconds in `next` for each batch of an epoch of training. The trainer takes `at_once` batches, and then trains on each."""
    batches, taken = iter(loader), []
    while True:
        began = time.perf_counter()
        some = list(itertools.islice(batches, at_once))
        inside = time.perf_counter() - began
        if len(some) < at_once:
            return taken
        taken.append(inside / at_once)
        for batch in some:
            learn(*batch)


def steps(given):
    """Prints the time of `next` between two steps of training."""
    pictures = torch.rand(given.samples, 1, 28, 28)
    labels = torch.arange(given.samples) % 10
    for size, at_once in itertools.product((64, 256, 512), (1, 2, 4)):
        shared = {"persistent_workers": True, "prefetch_factor": 2 * at_once}
        loaders = {
            "slices": Slices(pictures, labels, size),
            "SharedLoader, 1 worker": SharedLoader(TensorDataset(pictures, labels), size, 1, **shared),
        }
        learners = {name: trainer() for name in loaders}
        # The first round starts the workers. The first batch of an epoch waits for the worker.
        taken = interleaved(loaders, given.rounds, lambda name: between(loaders[name], learners[name], at_once)[1:])
        print(f"\nnext in us between steps of training, for each batch of {size}, {at_once} taken at once: median (10 % to 90 %)")
        for name, runs in taken.items():
            values = list(itertools.chain(*runs))
            tenths = statistics.quantiles(values, n=10)
            print(f"  {name:40}{statistics.median(values) * 1e6:9.2f} ({tenths[0] * 1e6:.2f} to {tenths[-1] * 1e6:.2f})")
        loaders.clear()


def main():
    options = parser(__doc__, rounds=7)
    options.add_argument("--samples", type=int, default=16384)
    options.add_argument("--part", choices=["epochs", "steps", "modes", "ends"])
    given = options.parse_args()
    print(f"{given.samples} samples, {given.rounds} rounds, torch {torch.__version__}")
    if given.part in (None, "ends"):
        ends(given.rounds)
    torch.set_num_threads(1)
    if given.part in (None, "modes"):
        for size in BATCHES:
            modes(size, given.rounds)
    if given.part in (None, "epochs"):
        epochs(given)
    if given.part in (None, "steps"):
        steps(given)


def epochs(given):
    """Prints the times of epochs, and of `next`, of all loaders."""
    pictures = torch.rand(given.samples, 1, 28, 28)
    labels = torch.arange(given.samples) % 10
    for size in BATCHES:
        print(f"\nepoch in ms, batches of {size}")
        loaders = methods(pictures, labels, size)
        times = interleaved(loaders, given.rounds, lambda name: epoch(loaders[name]))
        least = statistics.median(times["SharedLoader, 2 workers"])
        for name, values in times.items():
            print(f"  {name:40}{spread(values, unit=1e3):>34}   {statistics.median(values) / least:6.2f}x")
        loaders.clear()
        ahead = min(given.samples, AHEAD * size)
        print(f"next in us when the batch is there, batches of {size}")
        loaders = methods(pictures[:ahead].clone(), labels[:ahead].clone(), size, AHEAD)
        # Without workers, and with fewer batches, no batch is there.
        timed = [name for name in loaders if name != "DataLoader, 0 workers" and ahead == AHEAD * size]
        taken = interleaved(timed, given.rounds + 1, lambda name: nexts(loaders[name]), warm=0)
        times = {name: list(itertools.chain(*runs)) for name, runs in taken.items()}
        for name, values in times.items():
            print(f"  {name:40}{spread(values, unit=1e6):>34}")
        loaders.clear()
        if times:
            trained = statistics.median(training(pictures, labels, size) for _ in range(given.rounds))
            share = statistics.median(times["SharedLoader, 1 worker"]) * -(-given.samples // size) / trained
            print(f"of an epoch of training a small model ({trained * 1e3:.1f} ms): {share:.2%}")


if __name__ == "__main__":
    main()
