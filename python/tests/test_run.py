"""Unmodified programs under `python -m tensorlend.run`."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest
from amounts import only_in_full

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("TENSORLEND_SOCKET", "TENSORLEND_RUN"))}


def run(*arguments, python=(), **environment):
    """Runs a program by itself and under tensorlend.run; returns what the latter lent: values and MiB, and its errors."""
    said = []
    for under in ([], ["-m", "tensorlend.run"]):
        done = subprocess.run(
            [sys.executable, *python, *under, *map(str, arguments)],
            capture_output=True, text=True, timeout=600, env={**ENVIRONMENT, **environment},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done)
    usual, under = said
    assert under.stdout == usual.stdout
    found = re.search(r"tensorlend: lent ([\d,]+) arrays and tensors, ([\d,.]+) MiB(.*)\n$", under.stderr)
    assert found, under.stderr
    assert under.stderr[: found.start()] == usual.stderr
    assert found[3] == " that were not pickled", under.stderr
    return int(found[1].replace(",", "")), float(found[2].replace(",", ""))


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
print(sorted({"numpy", "torch", "joblib", "multiprocessing"} & set(sys.modules)))
import subprocess
print(subprocess.check_output([sys.executable, "-c",
    "import sys; print(sorted({'numpy', 'torch', 'joblib', 'multiprocessing', 'tensorlend'} & set(sys.modules)))"], text=True))
"""
    assert run(program(tmp_path, source)) == (0, 0.0)


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
        return subprocess.run([sys.executable, "-m", "tensorlend.run", path], capture_output=True, text=True, env=ENVIRONMENT)

    assert under("import sys; sys.exit(7)").returncode == 7
    failed = under("def fails():\n    raise ValueError('no')\nfails()\n")
    assert failed.returncode == 1 and "line 2, in fails" in failed.stderr and "ValueError: no" in failed.stderr
    missing = subprocess.run([sys.executable, "-m", "tensorlend.run", "nothing.py"], capture_output=True, text=True, env=ENVIRONMENT)
    assert missing.returncode == 1 and "nothing.py" in missing.stderr and "Traceback" not in missing.stderr


def test_without_a_daemon_the_program_goes_without(tmp_path):
    source = POOL.replace("exit=False", "exit=False, testRunner=unittest.TextTestRunner(stream=open('/dev/null', 'w'))")
    done = subprocess.run(
        [sys.executable, "-m", "tensorlend.run", program(tmp_path, source), "fork"],
        capture_output=True, text=True, timeout=600, env={**ENVIRONMENT, "TENSORLEND_SOCKET": "/nowhere"},
    )  # fmt: skip
    assert done.returncode == 0 and "done __main__ True" in done.stdout
    assert "lent 0 arrays" in done.stderr and "not installed: multiprocessing" in done.stderr


# Public programs: examples and tests that packages bring with them. They pass as they are.
@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("joblib", ["-p", "no:cacheprovider", "--pyargs", "joblib.test.test_parallel", "-k", "dispatch_one_job"]),
        only_in_full(
            "joblib", ["-p", "no:cacheprovider", "--pyargs", "joblib.test.test_parallel", "-k", "simple_parallel or nested_loop"], why="two minutes"
        ),
        ("sklearn", ["-p", "no:cacheprovider", "--pyargs", "sklearn.ensemble.tests.test_forest", "-k", "parallel"]),
        only_in_full(
            "joblib",
            ["-p", "no:cacheprovider", "--pyargs", "joblib.test.test_memmapping", "-k", "pool_with_memmap or workaround_against_bad_memmap"],
            why="half a minute",
        ),
    ],
)
def test_public_tests_pass(package, arguments, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "tensorlend.run", "-m", "pytest", "-q", *arguments],
        capture_output=True, text=True, timeout=600, env=ENVIRONMENT, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* passed", done.stdout), done.stdout
    assert not list(pathlib.Path(tmp_path).glob("tensorlend-run-*"))
