"""Unmodified programs under `python -m tensorlend.run`."""

import importlib.util
import os
import pathlib
import re
import signal

import programs
import pytest
from amounts import only_in_full

import tensorlend
from tensorlend import _weights_run

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("TENSORLEND_SOCKET", "TENSORLEND_RUN"))}


def run_both(*arguments, python=(), options=(), **environment):
    """Runs a program by itself and under tensorlend.run; returns what the latter says at its end of lent values and MiB, and the rest."""
    said = []
    for under in ([], ["-m", "tensorlend.run", *options]):
        said.append(programs.succeeds(*python, *under, *arguments, env={**ENVIRONMENT, **environment}))
    usual, under = said
    assert under.stdout == usual.stdout
    found = re.search(r"tensorlend: lent ([\d,]+) arrays and tensors, ([\d,.]+) MiB that were not pickled(.*)\n$", under.stderr)
    assert found, under.stderr
    assert under.stderr[: found.start()] == usual.stderr
    return int(found[1].replace(",", "")), float(found[2].replace(",", "")), found[3]


def run(*arguments, **options):
    """The same; returns the lent values and MiB of a program that has nothing else to say."""
    lent, mib, rest = run_both(*arguments, **options)
    assert rest == ""
    return lent, mib


def program(tmp_path, source):
    path = tmp_path / "program.py"
    path.write_text(source)
    return path


POOL = """
import multiprocessing
import sys
import unittest
import numpy as np

def double(array):
    return array * 2

class Pools(unittest.TestCase):
    def test_map(self):
        with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
            for number, array in enumerate(pool.map(double, [np.full(1 << 17, n) for n in range(4)])):
                self.assertTrue((array == 2 * number).all())
            self.assertEqual(pool.map(double, [1, 2]), [2, 4])
        print("done", __name__, __file__ == sys.argv[0])

if __name__ == "__main__":
    result = unittest.main(argv=sys.argv[:1], exit=False).result
    sys.stderr.flush()
    sys.exit(not result.wasSuccessful())
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool(tmp_path, method):
    # unittest prints how long it took.
    source = POOL.replace("exit=False", "exit=False, testRunner=unittest.TextTestRunner(stream=open('/dev/null', 'w'))")
    lent, mib = run(program(tmp_path, source), method)
    # Each argument and each result, those of spawned workers, too.
    assert (lent, mib) == (8, 8.0)


def test_a_module_and_its_arguments(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "package/__main__.py").write_text(POOL.replace("sys.argv[:1], exit", "['x'], exit").replace(
        "exit=False", "exit=False, testRunner=unittest.TextTestRunner(stream=open('/dev/null', 'w'))"
    ))
    assert run("-m", "package", "fork", PYTHONPATH=str(tmp_path)) == (8, 8.0)


def test_a_program_is_as_under_python(tmp_path):
    """Annotations are not text, `__file__` is absolute, and `__main__` stays for threads that outlive the main thread."""
    (tmp_path / "both.py").write_text("""
import dataclasses, multiprocessing, os, sys, threading

@dataclasses.dataclass
class Point:
    x: int

def square(x):
    return x * x

def later():
    threading.main_thread().join()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(square, [3]), flush=True)

if __name__ == "__main__":
    print(dataclasses.fields(Point)[0].type, os.path.isabs(__file__), sys.argv[1:], len(sys.path[0]) > 1)
    if __spec__:  # Python forgets the file of a program when its main thread ends.
        threading.Thread(target=later).start()
""")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/__main__.py").write_text("import sys\nprint(__name__, __file__, sys.argv, sys.path[0])\n")
    for arguments in (["both.py", "x"], ["-m", "both", "x"], ["folder", "x"]):
        outputs = []
        for under in ([], ["-m", "tensorlend.run"]):
            done = programs.succeeds(*under, *arguments, env=ENVIRONMENT, cwd=tmp_path)
            outputs.append(done.stdout.replace(str(tmp_path) + "/", ""))
        assert outputs[0] == outputs[1] and outputs[0]


CODE = """
import multiprocessing, sys
import numpy as np
context = multiprocessing.get_context("fork")
with context.Pool(1) as pool:
    print(float(pool.map(np.sum, [np.ones(1 << 17)])[0]))
print(__name__, sys.argv, sys.path[0], "__file__" in globals(), __spec__)
"""


def test_code():
    assert run("-c", CODE, "x", "-y") == (1, 1.0)


def test_the_tool_runs_programs(broker, tmp_path):
    environment = {**ENVIRONMENT, "TENSORLEND_SOCKET": ""}
    tool = ["-m", "tensorlend", "run"]

    def under(*arguments):
        return programs.run(*tool, *arguments, env=environment)

    path = program(tmp_path, "import os, sys\nprint(sys.argv[1:], os.environ.get('TENSORLEND_SOCKET'))\nsys.exit(7)\n")
    done = under("--socket", broker.address, path, "--help", "--weights", "--", "--json")
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"{['--help', '--weights', '--', '--json']} {broker.address}\n"
    assert re.fullmatch("tensorlend: lent 0 arrays and tensors, 0.0 MiB that were not pickled\n", done.stderr)
    done = under("--weights", "-c", "import sys; print(sys.argv, sys.orig_argv[1:3])", "-m")
    assert (done.returncode, done.stdout) == (0, "['-c', '-m'] ['-m', 'tensorlend.run']\n") and "weights: 0" in done.stderr
    assert under("-m", "this", "x").stdout.startswith("The Zen of Python")
    assert under().returncode == 2 and "run [OPTIONS] <PROGRAM>" in under("--help").stdout


def test_joblib(tmp_path):
    pytest.importorskip("joblib", reason="joblib is not installed")
    source = """
import joblib
import numpy as np

def total(array, row):
    return array[row] + 1

if __name__ == "__main__":
    table = np.ones((4, 1 << 17))
    for row in joblib.Parallel(n_jobs=2)(joblib.delayed(total)(table, row) for row in range(4)):
        print(row.sum())
"""
    assert run(program(tmp_path, source)) == (5, 8.0)


def test_a_data_loader(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    source = """
import torch

class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((3, 64, 64), index, dtype=torch.float32), index

if __name__ == "__main__":
    for pictures, labels in torch.utils.data.DataLoader(Pictures(), batch_size=16, num_workers=2):
        print(pictures.shape, pictures[:, 0, 0, 0].tolist(), labels.tolist(), pictures.is_shared() and "shared" or "shared")
"""
    lent, mib = run(program(tmp_path, source))
    assert (lent, mib) == (4, 3.0)


def test_it_imports_nothing_by_itself(tmp_path):
    source = """
import sys
print(sorted({"numpy", "torch", "joblib", "multiprocessing", "safetensors"} & set(sys.modules)))
import subprocess
print(subprocess.check_output([sys.executable, "-c",
    "import sys; print(sorted({'numpy', 'torch', 'joblib', 'multiprocessing', 'safetensors', 'tensorlend'} & set(sys.modules)))"], text=True))
"""
    assert run(program(tmp_path, source)) == (0, 0.0)
    assert run_both(program(tmp_path, source), options=["--weights"]) == (0, 0.0, NO_WEIGHTS)


def test_a_sitecustomize_of_the_users(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import builtins\nbuiltins.of_the_user = __name__\n")
    source = """
import subprocess, sys
print(of_the_user)
print(subprocess.check_output([sys.executable, "-c", "print(of_the_user)"], text=True))
"""
    run(program(tmp_path, source), PYTHONPATH=str(folder))


def test_errors_and_exits_are_the_programs_own(tmp_path):
    def under(source):
        path = program(tmp_path, source)
        return programs.run("-m", "tensorlend.run", path, env=ENVIRONMENT)

    assert under("import sys; sys.exit(7)").returncode == 7
    failed = under("def fails():\n    raise ValueError('no')\nfails()\n")
    assert failed.returncode == 1 and "line 2, in fails" in failed.stderr and "ValueError: no" in failed.stderr
    missing = programs.run("-m", "tensorlend.run", "nothing.py", env=ENVIRONMENT)
    assert missing.returncode == 1 and "nothing.py" in missing.stderr and "Traceback" not in missing.stderr


KILLED = """
import multiprocessing, os, signal, sys
import numpy as np

def echo(inbox, outbox):
    while True:
        outbox.send(inbox.recv())

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    (inbox, here), (back, outbox) = context.Pipe(duplex=False), context.Pipe(duplex=False)
    context.Process(target=echo, args=(inbox, outbox), daemon=True).start()
    here.send(np.zeros(1 << 17))
    assert len(back.recv()) == 1 << 17
    os.killpg(0, int(sys.argv[2]))
    signal.pause()
"""


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_killed_program_leaves_no_files(broker, tmp_path, method, by):
    files = tmp_path / "files"
    files.mkdir()
    environment = {**ENVIRONMENT, "TENSORLEND_SOCKET": broker.address, "TMPDIR": str(files)}
    done = programs.run("-m", "tensorlend.run", program(tmp_path, KILLED), method, int(by), start_new_session=True, env=environment)
    assert done.returncode == -by, done.stderr
    # multiprocessing makes this folder for its own sockets. Its process removes it, unless that is killed.
    assert not [path for path in files.iterdir() if not path.name.startswith("pymp-")]


def test_a_program_that_closes_all_files(tmp_path):
    source = "import os\nos.closerange(3, 1000)\nopen('/dev/null')\nprint('done')\n"
    done = programs.succeeds("-m", "tensorlend.run", program(tmp_path, source), env=ENVIRONMENT)
    assert done.stdout == "done\n"
    assert done.stderr == "tensorlend: the program has closed the file that counts what is lent\n"


def test_a_process_with_an_empty_variable_sends_as_usual(tmp_path):
    source = """
import os, subprocess, sys
program = "import multiprocessing.reduction, numpy, sys; print('tensorlend' in sys.modules)"
print(subprocess.check_output([sys.executable, "-c", program], text=True, env={**os.environ, "TENSORLEND_RUN": ""}))
"""
    assert run(program(tmp_path, source)) == (0, 0.0)


def test_without_a_daemon_the_program_goes_without(tmp_path):
    source = POOL.replace("exit=False", "exit=False, testRunner=unittest.TextTestRunner(stream=open('/dev/null', 'w'))")
    environment = {**ENVIRONMENT, "TENSORLEND_SOCKET": "/nowhere"}
    done = programs.succeeds("-m", "tensorlend.run", program(tmp_path, source), "fork", env=environment)
    assert "done __main__ True" in done.stdout
    assert "lent 0 arrays" in done.stderr and "not installed: multiprocessing" in done.stderr


NO_WEIGHTS = "; weights: 0 loaded from lent memory, 0.0 MiB"

LOADS = """
import inspect
import multiprocessing
import pickle
import subprocess
import sys

import numpy as np
import safetensors.numpy
from safetensors.numpy import load_file

def total(path):
    arrays = load_file(path)
    assert arrays["a"].flags.writeable
    arrays["b"] += 1  # no other process sees this
    return [(name, array.dtype, array.shape, float(array.sum())) for name, array in arrays.items()]

if __name__ == "__main__":
    path = sys.argv[1]
    print(total(path), inspect.signature(load_file), load_file.__module__, load_file.__doc__)
    assert pickle.loads(pickle.dumps(load_file)) is safetensors.numpy.load_file is load_file
    if len(sys.argv) == 2:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(total, [path, path]))
        print(subprocess.check_output([sys.executable, __file__, path, "child"], text=True))
"""


def weights_in(path, dtype="float32"):
    """Writes a file of 1 MiB and a bit."""
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    import numpy as np

    numpy.save_file({"b": np.arange(5), "a": np.ones((512, 512), dtype), "empty": np.ones((0, 3), np.float32), "one": np.array(7, np.uint8)}, path)
    return path


def test_weights_are_loaded_once_for_all_processes(broker, client, tmp_path):
    path = weights_in(tmp_path / "model.safetensors")
    script = program(tmp_path, LOADS)
    # The program, two loads in its pool, and the process that it starts.
    expected = (0, 0.0, "; weights: 4 loaded from lent memory, 4.0 MiB")
    assert run_both(script, path, options=["--weights"], TENSORLEND_SOCKET=broker.address) == expected
    assert len(client.names("weights/*")) == 1
    # Without the option, nothing changes.
    assert run_both(script, path, "child") == (0, 0.0, "")


def test_weights_without_a_daemon_are_loaded_as_usual(tmp_path):
    path = weights_in(tmp_path / "model.safetensors")
    *_, said = run_both(program(tmp_path, LOADS), path, "child", options=["--weights"], TENSORLEND_SOCKET="/nowhere")
    assert re.match(rf"{NO_WEIGHTS}; 1 could not be lent and were loaded as usual \(no tensorlend daemon responds at /nowhere .*\)", said), said


def test_weights_without_memory_are_loaded_as_usual(tmp_path):
    path = weights_in(tmp_path / "model.safetensors")
    with tensorlend.embedded('pool.bytes_max = "1MiB"\npool.segment_bytes = "1MiB"') as small:
        *_, said = run_both(program(tmp_path, LOADS), path, options=["--weights"], TENSORLEND_SOCKET=small.address)
    assert re.match(rf"{NO_WEIGHTS}; 4 could not be lent and were loaded as usual \(.*would pass its limit of 1 MiB.*\)$", said), said


def test_weights_that_only_safetensors_loads_as_it_does(broker, client, tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    path = weights_in(tmp_path / "model.safetensors", ml_dtypes.bfloat16)
    source = LOADS.replace("import numpy as np", "import ml_dtypes")
    *_, said = run_both(program(tmp_path, source), path, "child", options=["--weights"], TENSORLEND_SOCKET=broker.address)
    assert said == f"{NO_WEIGHTS}; 1 could not be lent and were loaded as usual (tensor 'a' has elements of type BF16)"
    assert client.names("weights/*") == [], "it is not read into lent memory without use"


def test_calls_of_load_file_that_stay_with_safetensors(tmp_path):
    path = weights_in(tmp_path / "model.safetensors")
    source = """
import pathlib
import sys

import numpy as np
import safetensors
import safetensors.numpy

path = pathlib.Path(sys.argv[1])
print(safetensors.numpy.load_file(path, backend="pread")["a"].sum())
with safetensors.safe_open(path, framework="np") as file:
    print(file.get_tensor("a").sum())
small = path.with_name("small")
safetensors.numpy.save_file({"x": np.ones(1000)}, small)
print(safetensors.numpy.load_file(small)["x"].sum())
broken = path.with_name("broken")
broken.write_bytes(path.read_bytes()[:-1])
for arguments, named in [((), {}), ((3,), {}), ((path, 4), {}), ((path,), {"other": 1}), (("nowhere",), {}), ((broken,), {}), ((path.parent,), {})]:
    try:
        safetensors.numpy.load_file(*arguments, **named)
    except Exception as error:
        print(type(error), error, error.__context__)
"""
    assert run_both(program(tmp_path, source), path, options=["--weights"]) == (0, 0.0, NO_WEIGHTS)


def test_only_a_call_for_the_cpu_is_lent(tmp_path):
    path = weights_in(tmp_path / "model.safetensors")

    def original(filename, device="cpu", *, backend="mmap"):
        return {"by": "safetensors"}

    load_file = _weights_run.replacement(original, lambda path: {"by": "tensorlend"}, frozenset({"F32", "I64", "U8"}))
    for arguments, named in [((path,), {}), ((str(path), "cpu"), {}), ((), {"filename": path, "device": "cpu", "backend": "mmap"})]:
        assert load_file(*arguments, **named) == {"by": "tensorlend"}
    for arguments, named in [((path, "cuda"), {}), ((path, 0), {}), ((path,), {"device": "cuda:1"}), ((path,), {"backend": "pread"})]:
        assert load_file(*arguments, **named) == {"by": "safetensors"}


def test_weights_of_torch(broker, client, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    path = tmp_path / "model.safetensors"
    source = """
import multiprocessing
import sys

import safetensors.torch
import torch
from safetensors.torch import load_file

def total(path):
    tensors = load_file(path, device="cpu")
    tensors["b"] += 1
    return [(name, tensor.dtype, tensor.shape, float(tensor.sum())) for name, tensor in tensors.items()]

if __name__ == "__main__":
    path = sys.argv[1]
    print(total(path))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(total, [path, path]))
    model = torch.nn.Linear(512, 512, bias=False)
    tensors = load_file(path)
    safetensors.torch.save_file({"weight": tensors["a"]}, path + ".copy")
    print(safetensors.torch.load_model(model, path + ".copy"), float(model.weight.detach().sum()))
"""
    from safetensors.torch import save_file
    from torch import arange, bfloat16, ones

    save_file({"b": arange(5), "a": ones(512, 512, dtype=bfloat16)}, path)
    *_, said = run_both(program(tmp_path, source), path, options=["--weights"], TENSORLEND_SOCKET=broker.address)
    assert said == "; weights: 5 loaded from lent memory, 2.5 MiB"
    assert len(client.names("weights/*")) == 2


# Public programs: examples and tests that packages bring with them. They pass as they are.
@pytest.mark.parametrize(
    ("package", "arguments", "least"),
    [
        ("joblib", ["-p", "no:cacheprovider", "--pyargs", "joblib.test.test_parallel", "-k", "dispatch_one_job"], 0),
        only_in_full(
            "joblib", ["-p", "no:cacheprovider", "--pyargs", "joblib.test.test_parallel", "-k", "simple_parallel or nested_loop"], 0,
            why="two minutes",
        ),
        ("sklearn", ["-p", "no:cacheprovider", "--pyargs", "sklearn.ensemble.tests.test_forest", "-k", "parallel"], 0),
        # Arrays of 512 KiB and more in a pool: four arguments and four results.
        ("scipy", ["-p", "no:cacheprovider", "--pyargs", "scipy.fft.tests.test_multithreading", "-k", "mixed_threads_processes"], 8),
        only_in_full(
            "joblib",
            ["-p", "no:cacheprovider", "--pyargs", "joblib.test.test_memmapping", "-k", "pool_with_memmap or workaround_against_bad_memmap"],
            0,
            why="half a minute",
        ),
    ],
)
def test_public_tests_pass(package, arguments, least, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = programs.succeeds("-m", "tensorlend.run", "-m", "pytest", "-q", *arguments, env=ENVIRONMENT, cwd=tmp_path)
    assert re.search(r"[1-9]\d* passed", done.stdout), done.stdout
    said = re.search(r"tensorlend: lent ([\d,]+) arrays and tensors", done.stderr)
    assert said and int(said[1].replace(",", "")) >= least, done.stderr
    assert not list(pathlib.Path(tmp_path).glob("tensorlend-run-*"))
