"""Memory and time of programs under `tensorlend run`, or with one line changed, compared with the same programs as they are.

    python run.py [--rounds N] [PROGRAM...]

The memory is the peak for all processes of a program, with its daemon: PSS, which counts a page that several processes have mapped
in parts; and the same with shared memory that no process has mapped, such as joblib's files in /dev/shm and the unused part of a
segment. The time is that of the program's work, without its start. Both contenders run in turns.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import family, interleaved, parser, smaps, spread

LOADER = """
class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 16 * BATCHES
    def __getitem__(self, index):
        return torch.full((3, 192, 192), index % 7, dtype=torch.float32), index % 7
def loader():
    return torch.utils.data.DataLoader(Pictures(), batch_size=16, num_workers=2, multiprocessing_context="fork")
BATCHES = 100
"""

MODEL = """
class Model(BASE):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(192, 7)
    def loss(self, pictures, labels):
        return torch.nn.functional.cross_entropy(self.layer(pictures.mean((1, 2))), labels)
"""

ENVIRONMENT = """
class Camera(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (480, 640, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)
    def reset(self, *, seed=None, options=None):
        return np.zeros((480, 640, 3), np.uint8), {}
    def step(self, action):
        return np.full((480, 640, 3), action, np.uint8), 0.0, False, False, {}
"""

#: By name: definitions, and the work that is measured.
PROGRAMS = {
    "Pool.imap, 4 MiB": (
        "import multiprocessing, numpy as np\ndef square(array):\n    return array * array\n",
        """
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            for result in pool.imap(square, (np.full(1 << 19, n) for n in range(100))):
                result.sum()
        """,
    ),
    "Pool.map, 4 MiB": (
        "import multiprocessing, numpy as np\ndef square(array):\n    return array * array\n",
        """
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            for result in pool.map(square, [np.full(1 << 19, n) for n in range(50)]):
                result.sum()
        """,
    ),
    "Queue, 1 MiB": (
        """
import multiprocessing, numpy as np
def echo(inbox, outbox):
    while (array := inbox.get()) is not None:
        outbox.put(float(array.sum()))
""",
        """
        context = multiprocessing.get_context("fork")
        inbox, outbox = context.Queue(), context.Queue()
        worker = context.Process(target=echo, args=(inbox, outbox))
        worker.start()
        for n in range(250):
            inbox.put(np.full(1 << 17, n))
        inbox.put(None)
        [outbox.get() for _ in range(250)]
        worker.join()
        """,
    ),
    "DataLoader, 6.75 MiB": (
        "import torch\ntorch.set_num_threads(1)\n" + LOADER,
        """
        for pictures, labels in loader():
            pictures.sum()
        """,
    ),
    "DataLoader, written": (
        "import torch\ntorch.set_num_threads(1)\n" + LOADER,
        """
        for pictures, labels in loader():
            pictures += 1
        """,
    ),
    "joblib, 64 MiB": (
        "import joblib, numpy as np\ndef total(array, row):\n    return array[row].sum()\n",
        """
        for n in range(3):
            table = np.full((64, 1 << 17), float(n))
            joblib.Parallel(n_jobs=2)(joblib.delayed(total)(table, row) for row in range(64))
        """,
    ),
    "Lightning": (
        "import logging, warnings\nwarnings.simplefilter('ignore')\nimport lightning, torch\n"
        "logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)\ntorch.set_num_threads(1)\nBASE = lightning.LightningModule\n"
        + LOADER + MODEL +
        "    def training_step(self, batch):\n        return self.loss(*batch)\n"
        "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), 0.01)\n",
        """
        quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(Model(), loader())
        """,
    ),
    "accelerate": (
        "import accelerate, torch\ntorch.set_num_threads(1)\nBASE = torch.nn.Module\n" + LOADER + MODEL,
        """
        model = Model()
        model, optimizer, batches = accelerate.Accelerator(cpu=True).prepare(model, torch.optim.SGD(model.parameters(), 0.01), loader())
        for pictures, labels in batches:
            model.loss(pictures, labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    ),
    "AsyncVectorEnv, pipes": (
        "import gymnasium, numpy as np\n" + ENVIRONMENT,
        """
        envs = gymnasium.vector.AsyncVectorEnv([Camera, Camera], shared_memory=False, context="fork")
        envs.reset()
        for _ in range(200):
            envs.step(envs.action_space.sample())
        envs.close()
        """,
    ),
}  # fmt: skip

PROGRAMS["AsyncVectorEnv"] = (PROGRAMS["AsyncVectorEnv, pipes"][0], PROGRAMS["AsyncVectorEnv, pipes"][1].replace("shared_memory=False, ", ""))

#: By name: a program, and the text that a user of an integration replaces in it.
CHANGES = {
    "SharedLoader": ("DataLoader, 6.75 MiB", "return torch.utils.data.DataLoader", "import tensorlend.torch\n    return tensorlend.torch.SharedLoader"),
    "accelerate.install()": ("accelerate", "import accelerate", "import accelerate, tensorlend.accelerate\ntensorlend.accelerate.install()\nimport accelerate"),
    "SharedVectorEnv": (
        "AsyncVectorEnv",
        "gymnasium.vector.AsyncVectorEnv(",
        "__import__('tensorlend.gymnasium').gymnasium.SharedVectorEnv(",
    ),
}


def source(name: str) -> str:
    definitions, work = PROGRAMS[name]
    return f"import sys, time\n{definitions}\nif __name__ == '__main__':\n    if True:\n        began = time.perf_counter()\n{work}\n        print(time.perf_counter() - began)\n"


def memory(root: int) -> tuple[float, float]:
    """Returns the PSS of a program in MiB, and its memory with all of its shared memory, mapped or not."""
    private = mapped = 0
    shared: dict[tuple[int, int], int] = {}
    paths = list(Path("/dev/shm").glob(f"*_{root}_*/*"))
    for pid in family(root):
        with contextlib.suppress(OSError):
            kinds = smaps(pid)
            private += kinds["Pss_Anon"] + kinds["Pss_File"]
            mapped += kinds["Pss_Shmem"]
            descriptors = Path(f"/proc/{pid}/fd").iterdir()
            paths += [path for path in descriptors if os.readlink(path).startswith(("/memfd:", "/dev/shm/"))]
    for path in paths:
        with contextlib.suppress(OSError):
            found = path.stat()
            shared[found.st_dev, found.st_ino] = found.st_blocks << 9
    # Files may be open and not mapped, or mapped and not open.
    return (private + mapped) / (1 << 20), (private + max(mapped, sum(shared.values()))) / (1 << 20)


def measure(program: Path, under: list[str], environment: dict[str, str]) -> tuple[float, float, float]:
    """Returns the peaks of both in MiB, and the seconds of the work."""
    process = subprocess.Popen([sys.executable, *under, program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    peaks = (0.0, 0.0)
    while process.poll() is None:
        now = memory(process.pid)
        peaks = (max(peaks[0], now[0]), max(peaks[1], now[1]))
        time.sleep(0.02)
    assert process.stdout is not None and process.returncode == 0, program
    return *peaks, float(process.stdout.read())


def main() -> None:
    options = parser(__doc__, rounds=5)
    names = [*PROGRAMS, *CHANGES]
    options.add_argument("programs", nargs="*", default=names, metavar="PROGRAM", help=", ".join(names))
    arguments = options.parse_args()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TENSORLEND")}
    heads = [f"{what}: plain | `tensorlend run` | ratio" for what in ("PSS, MiB", "with unmapped, MiB", "s")]
    print(f"| program | {' | '.join(heads)} |\n|---|{'--:|' * 9}")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.programs:
            plain_program, changed = Path(folder, "plain.py"), Path(folder, "changed.py")
            of, before, after = CHANGES.get(name, (name, "", ""))
            plain_program.write_text(source(of))
            changed.write_text(source(of).replace(before, after, 1) if before else source(of))
            under = [] if before else ["-m", "tensorlend.run"]
            contenders: list[tuple[Path, list[str]]] = [(plain_program, []), (changed, under)]
            found = interleaved((0, 1), arguments.rounds, lambda which: measure(*contenders[which], environment), warm=0)
            cells = []
            for at, digits in ((0, 0), (1, 0), (2, 2)):
                plain, lent = ([result[at] for result in results] for results in found.values())
                ratios = [after / before for before, after in zip(plain, lent, strict=True)]
                cells += [spread(plain, digits), spread(lent, digits), spread(ratios)]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
