"""What a process says of a fault in lent memory before it ends."""

import re
import signal

import pytest

START = """
import ctypes, faulthandler, mmap, os, sys
import numpy as np
import tensorlend
client = tensorlend.embedded().connect()
client.put("weights", np.ones(2000))
client.put_dataset("batch", {"x": np.ones(3), "y": np.ones(4)})

def write(lease):
    # Writes as torch does, which checks no read-only flag.
    ctypes.memset(lease.__array_interface__["data"][0], 0, 8)

def in_child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status)
    os.kill(os.getpid(), os.WTERMSIG(status))
"""

READ_ONLY = 'wrote to tensor "{}", which is leased read-only: get it with mode="cow", or write to a copy (.clone(), .copy())'
INHERITED_BATCH = (
    "used a batch of its parent's SharedLoader, which is not mapped after a fork: iterate over the loader in the child, "
    "or pass a copy (.clone(), .copy())"
)
INHERITED = 'used tensor "{}", which its parent process leased, and which is not mapped after a fork: get it in the child'
# At the fork the parent has no free descriptor for its children's token.
NO_TOKEN = """
import resource
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
"""

CASES = {
    "lease": ('lease = client.get("weights"); write(lease)', READ_ONLY.format("weights")),
    "array": ('array = client.get("weights").numpy(); ctypes.memset(array.ctypes.data + 9000, 0, 8)', READ_ONLY.format("weights")),
    "member": ('data = client.get_dataset("batch"); write(data["y"])', READ_ONLY.format("batch[y]")),
    "message": (
        'stream = client.stream("s"); s = client.subscribe("s"); stream.send([1.0]); write(s.recv().tensor)',
        READ_ONLY.format("s"),
    ),
    "long name": ('name = "ü" * 60; client.put(name, [1.0]); lease = client.get(name); write(lease)', READ_ONLY.format("ü" * 32 + "...")),
    "inherited, written to": ('lease = client.get("weights"); in_child(lambda: write(lease))', READ_ONLY.format("weights")),
    "inherited, without a token": (
        'array = client.get("weights").numpy()' + NO_TOKEN + "in_child(lambda: array[0])",
        INHERITED.format("weights"),
    ),
    "inherited, in a child that maps": (
        'array = client.get("weights").numpy()' + NO_TOKEN +
        'in_child(lambda: [array[0] for many in [[mmap.mmap(-1, 4096) for _ in range(3000)]]])',
        INHERITED.format("weights"),
    ),
    "inherited private": (
        'array = client.get("weights", mode="cow").numpy()' + NO_TOKEN + "in_child(lambda: array[0])",
        INHERITED.format("weights"),
    ),
    "draft": (
        'draft = client.create(3, name="mine"); array = draft.array; in_child(lambda: array.fill(1))',
        'used a draft ("mine") of its parent process, which is not mapped after a fork: create it in the child',
    ),
    # The child has mapped its own memory at the same address.
    "own of a child": (
        'old = client.get("weights"); in_child(lambda: write(client.get("weights")))',
        READ_ONLY.format("weights"),
    ),
}  # fmt: skip


def lines(errors):
    return [line for line in errors.splitlines() if line.startswith("tensorlend:")]


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_explained(script, name):
    source, says = CASES[name]
    done = script(START + source, check=False)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert lines(done.stderr) == ["tensorlend: Segmentation fault: this process " + says]


#: Uses of faulthandler by a program before and after the first view, which is created at VIEW.
ORDERS = {
    "not at all": "VIEW",
    "before": "faulthandler.enable(); VIEW",
    "after": "VIEW; faulthandler.enable()",
    "before, again after": "faulthandler.enable(); VIEW; faulthandler.enable()",
    "off and on": "VIEW; faulthandler.disable(); faulthandler.enable()",
    "in a file": "VIEW; faulthandler.enable(open('trace', 'w'))",
    "without stderr": "sys.stderr = None; VIEW",
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_fault_names_the_line_of_python(script, order, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = ORDERS[order].replace("VIEW", 'lease = client.get("weights")') + "\n\nwrite(lease)"
    done = script(START + source, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert lines(done.stderr) == ["tensorlend: Segmentation fault: this process " + READ_ONLY.format("weights")]
    trace = (tmp_path / "trace").read_text() if order == "in a file" else done.stderr
    assert trace.count("Fatal Python error: Segmentation fault") == 1
    line = (START + source).count("\n") + 1
    assert re.search(rf'File "[^"]+", line {line} in <module>', trace) and "in write" in trace, trace


def test_faulthandler_stays_off_if_the_program_turns_it_off(script):
    done = script(START + 'lease = client.get("weights"); faulthandler.disable(); write(lease)', check=False)
    assert done.returncode == -signal.SIGSEGV
    assert done.stderr.splitlines() == ["tensorlend: Segmentation fault: this process " + READ_ONLY.format("weights")]


def test_an_abort_names_the_line_too(script):
    done = script(START + 'lease = client.get("weights"); os.abort()', check=False)
    assert done.returncode == -signal.SIGABRT and lines(done.stderr) == []
    assert "Fatal Python error: Aborted" in done.stderr and "in <module>" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL])
def test_a_programs_own_handler_stays_the_only_one(script, number):
    """In C: faulthandler would report a fault that such a handler may resolve."""
    own = f"""
libc = ctypes.CDLL(None)
libc._exit.argtypes = [ctypes.c_int]
libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
libc.signal({int(number)}, ctypes.cast(libc._exit, ctypes.c_void_p))
lease = client.get("weights")
assert not faulthandler.is_enabled()
os.kill(os.getpid(), {int(number)})
"""
    done = script(START + own, check=False)
    assert done.returncode == int(number) and done.stderr == ""


@pytest.mark.parametrize(
    "source",
    [
        "ctypes.memset(64, 0, 8)",
        "os.kill(os.getpid(), 11)",
        'lease = client.get("weights"); at = lease.__array_interface__["data"][0]; del lease; ctypes.memset(at, 0, 8)',
        'array = client.get("weights", mode="cow").numpy(); array[0] = 2; draft = client.create(3); draft.array[0] = 1; ctypes.memset(64, 0, 8)',
    ],
)  # fmt: skip
def test_other_faults_are_left_alone(script, source):
    done = script(START + 'kept = client.get_dataset("batch")["x"]; ' + source, check=False)
    assert done.returncode == -signal.SIGSEGV and lines(done.stderr) == []
    assert done.stderr.count("Fatal Python error: Segmentation fault") == 1


@pytest.mark.parametrize("mode", ["read", "cow"])
def test_a_batch_of_the_parents_loader_is_explained(script, mode):
    source = (
        "from tensorlend.numpy import ArrayDataset, SharedLoader\n"
        f"loader = SharedLoader(ArrayDataset(np.ones(8)), 4, 1, mode={mode!r})\n"
        "(batch,) = next(iter(loader))\n" + NO_TOKEN + "in_child(lambda: batch[0])"
    )
    done = script(START + source, check=False)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert lines(done.stderr) == ["tensorlend: Segmentation fault: this process " + INHERITED_BATCH]


def test_it_can_be_switched_off(script, monkeypatch):
    monkeypatch.setenv("TENSORLEND_FAULT_MESSAGES", "0")
    done = script(START + CASES["lease"][0], check=False)
    assert done.returncode == -signal.SIGSEGV and done.stderr == ""


def test_a_handler_that_goes_on_is_asked(script):
    """A program's own handler, in C: here one that ends the process in its way."""
    source = START.replace("import numpy", """
libc = ctypes.CDLL(None)
libc._exit.argtypes = [ctypes.c_int]
libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
libc.signal(11, ctypes.cast(libc._exit, ctypes.c_void_p))
import numpy""")
    done = script(source + CASES["lease"][0], check=False)
    assert done.returncode == signal.SIGSEGV and len(lines(done.stderr)) == 1


def test_more_views_than_the_table_holds(script):
    done = script(START + """
data = client.get_dataset("batch")
many = [data["x"] for _ in range(20_000)]
del many
for _ in range(20_000):
    data["x"]
write(data["y"])
""", check=False)
    assert done.returncode == -signal.SIGSEGV and len(lines(done.stderr)) == 1


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ('client.get("weights").torch().add_(1)', READ_ONLY.format("weights")),
        ('torch.from_dlpack(client.get("weights")).add_(1)', READ_ONLY.format("weights")),
        ('client.get_dataset("batch").torch()[1].zero_()', READ_ONLY.format("batch[y]")),
        ('next(client.batches(["weights"], "torch")).zero_()', READ_ONLY.format("weights")),
        (
            'from tensorlend.torch import SharedLoader; (batch,) = next(iter(SharedLoader(TensorDataset(torch.ones(8)), 4, 1))); batch += 1',
            'wrote to a batch of a SharedLoader, which is read-only: give the loader mode="cow", or write to a copy (.clone())',
        ),
        (
            'client.put("mean", np.zeros(4, "f4")); norm = torch.nn.BatchNorm1d(4); norm.running_mean = client.get("mean").torch(); '
            "norm(torch.ones(2, 4))",
            READ_ONLY.format("mean"),
        ),
        (
            'client.put("layer", np.ones((4, 4), "f4")); model = torch.nn.Linear(4, 4, bias=False); '
            'model.weight.data = client.get("layer").torch(); optimizer = torch.optim.SGD(model.parameters(), 0.1); '
            "model(torch.ones(1, 4)).sum().backward(); optimizer.step()",
            READ_ONLY.format("layer"),
        ),
    ],
    ids=["torch", "from_dlpack", "dataset", "batches", "loader", "batchnorm", "sgd"],
)  # fmt: skip
def test_writes_of_torch_are_explained(script, source, says):
    pytest.importorskip("torch", reason="torch is not installed")
    done = script("import torch\nfrom torch.utils.data import TensorDataset\n" + START + source, check=False)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert lines(done.stderr) == ["tensorlend: Segmentation fault: this process " + says]


def test_a_worker_of_torchs_loader_reads_what_the_program_leased(script):
    pytest.importorskip("torch", reason="torch is not installed")
    done = script(
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n" + START
        + 'data = TensorDataset(client.get("weights").torch())\n'
        + 'loader = DataLoader(data, 4, num_workers=2, multiprocessing_context="fork")\n'
        + 'print(sum(float(rows.sum()) for (rows,) in loader))',
    )  # fmt: skip
    assert done.stdout.split() == ["2000.0"] and lines(done.stderr) == []


def test_a_worker_of_torchs_loader_that_writes_is_explained(script):
    pytest.importorskip("torch", reason="torch is not installed")
    done = script(
        "import torch\nfrom torch.utils.data import DataLoader, Dataset\n" + START + '''
weights = client.get("weights").torch()
class Wrong(Dataset):
    def __len__(self): return 4
    def __getitem__(self, at): return weights.zero_()
list(DataLoader(Wrong(), 4, num_workers=1, multiprocessing_context="fork"))''',
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert lines(done.stderr) == ["tensorlend: Segmentation fault: this process " + READ_ONLY.format("weights")]
