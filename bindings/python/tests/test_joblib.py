"""joblib's large arrays as leases."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from waiting import eventually

joblib = pytest.importorskip("joblib", reason="joblib is not installed")

import tensorlend
import tensorlend.joblib
from tensorlend import _transit

LARGE = 1 << 18  # elements of 8 bytes


@pytest.fixture
def installed(client):
    tensorlend.joblib.install(client=client)
    yield client
    tensorlend.joblib.uninstall()


def described(array, factor=1):
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    lent = type(getattr(base, "obj", base)).__name__ == "Lease"
    return lent, array.flags.writeable, float(array.sum()) * factor


def files(pid=None):
    return {path.name for path in pathlib.Path("/dev/shm").glob(f"joblib_memmapping_folder_{pid or os.getpid()}_*")}


def test_arguments_are_lent(installed):
    before, array = files(), np.arange(LARGE)
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(described)(array, n) for n in range(6))
    assert found == [(True, False, float(array.sum()) * n) for n in range(6)]
    small = joblib.Parallel(n_jobs=2)([joblib.delayed(described)(array[:100])] * 2)
    assert small == [(False, True, 4950.0)] * 2
    assert files() <= before and not installed.list("joblib/*")


@pytest.mark.parametrize("backend", ["loky", "tensorlend"])
def test_a_backend_by_its_name(installed, backend):
    array = np.arange(LARGE)
    found = joblib.Parallel(n_jobs=2, backend=backend)(joblib.delayed(described)(array, n) for n in range(4))
    assert found == [(True, False, float(array.sum()) * n) for n in range(4)]
    with joblib.parallel_config(backend, n_jobs=2):
        assert joblib.Parallel()(joblib.delayed(described)(array, n) for n in range(4)) == found
    assert not installed.list("joblib/*")
    tensorlend.joblib.uninstall()
    assert not joblib.Parallel(n_jobs=2, backend="loky")([joblib.delayed(described)(array)] * 2)[0][0]


def nested(backend):
    array = np.arange(LARGE)
    return joblib.Parallel(n_jobs=2, backend=backend)(joblib.delayed(described)(array, n) for n in range(3))


@pytest.mark.parametrize("backend", ["loky", "tensorlend"])
def test_a_call_within_a_worker(installed, backend):
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(nested)(backend) for _ in range(2))
    assert found == [[(True, False, float(np.arange(LARGE).sum()) * n) for n in range(3)]] * 2


def marked():
    return os.environ.get("MARKED")


def mark(value):
    os.environ["MARKED"] = value


def test_the_initializer_of_the_program_is_called(installed):
    with joblib.parallel_config("loky", n_jobs=2, initializer=mark, initargs=("yes",)):
        assert joblib.Parallel()(joblib.delayed(marked)() for _ in range(4)) == ["yes"] * 4


def test_an_array_is_copied_once_in_a_call_and_again_in_the_next(installed):
    array = np.zeros(LARGE)
    with joblib.Parallel(n_jobs=2) as parallel:
        for value in range(3):
            array[:] = value
            assert [total for _, _, total in parallel(joblib.delayed(described)(array) for _ in range(5))] == [value * LARGE] * 5
    assert not installed.list("joblib/*")


def test_the_next_call_has_the_same_workers(installed):
    array = np.zeros(LARGE)

    def workers(factor=1):
        return set(joblib.Parallel(n_jobs=2)(joblib.delayed(process_of)(array * factor) for _ in range(20)))

    first = workers()
    assert workers(2) <= first and workers() <= first
    tensorlend.joblib.uninstall()
    assert not workers() & first, "joblib's own reducers are for other workers"


def first(array, _row=0):
    return float(array[0])


def calls(array, rows=2, **options):
    return joblib.Parallel(n_jobs=2, **options)(joblib.delayed(first)(array, row) for row in range(rows))


def test_overlapping_calls_get_the_arrays_as_they_are(installed):
    array = np.zeros(LARGE)
    with joblib.Parallel(n_jobs=2), joblib.Parallel(n_jobs=2):
        for value in range(3):
            array[:] = value
            assert calls(array) == [value] * 2
    results = calls(array, 50, return_as="generator")
    assert next(results) == 2
    for value in (7, 8):
        array[:] = value
        assert calls(array) == [value] * 2
    list(results)
    assert not installed.list("joblib/*")


def test_calls_of_several_threads_get_the_arrays_as_they_are(installed):
    wrong = []

    def work(start):
        array = np.zeros(LARGE)
        for value in range(start, start + 8):
            array[:] = value
            found = calls(array)
            if found != [value] * 2:
                wrong.append((value, found))

    threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and not installed.list("joblib/*")


class Reduced:
    """Its array exists only while it is pickled."""

    def __getstate__(self):
        return {"array": np.arange(LARGE)}

    def last(self):
        return int(self.array[-1])


def test_arrays_that_exist_only_while_a_task_is_pickled(installed):
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(Reduced.last)(Reduced()) for _ in range(6))
    assert found == [LARGE - 1] * 6 and not installed.list("joblib/*")


def test_an_error_within_a_block_does_not_keep_arrays(installed):
    array = np.zeros(LARGE)
    with joblib.Parallel(n_jobs=2) as parallel:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                parallel(joblib.delayed(fails)(array) for _ in range(2))
    for value in (1, 2):
        array[:] = value
        assert calls(array) == [value] * 2
    assert not installed.list("joblib/*")


def process_of(array):
    time.sleep(0.01)
    return os.getpid()


#: Elements of 8 bytes of a result that the caller maps.
MAPPED = _transit.COPIES_MAX // 8 + 1


def result(n):
    return np.full(MAPPED, n)


def test_results_are_the_callers_own(installed):
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(result)(n) for n in range(5))
    assert [described(array) for array in found] == [(True, True, float(n) * MAPPED) for n in range(5)]
    found[1] += 1
    # A thread of the worker handles the receipt.
    eventually("all results are received", lambda: not installed.list("transit/*"))


def test_copy_on_write_and_what_stays_joblibs(installed):
    array = np.ones(LARGE)
    for mode, expected in (("c", (True, True)), ("r+", (False, True))):
        found = joblib.Parallel(n_jobs=2, mmap_mode=mode)(joblib.delayed(described)(array) for _ in range(2))
        assert [one[:2] for one in found] == [expected] * 2
    found = joblib.Parallel(n_jobs=2, max_nbytes=None)(joblib.delayed(described)(array) for _ in range(2))
    assert [one[0] for one in found] == [False] * 2
    assert joblib.Parallel(n_jobs=2, prefer="threads")(joblib.delayed(described)(array) for _ in range(2))[0][0] is False
    assert not installed.list("joblib/*")


def fails(array):
    raise ZeroDivisionError


def test_an_error_leaves_nothing(installed):
    with pytest.raises(ZeroDivisionError):
        joblib.Parallel(n_jobs=2)(joblib.delayed(fails)(np.ones(LARGE)) for _ in range(4))
    assert not installed.list("joblib/*")


PROGRAM = """
import joblib, numpy, os, sys, tensorlend.joblib
tensorlend.joblib.install()
def work(array):
    if array[0] == 2:
        print("running", flush=True)
        __import__("time").sleep(600)
    return array.sum()
for n in range(3):
    joblib.Parallel(n_jobs=2)(joblib.delayed(work)(numpy.full(1 << 18, n)) for _ in range(4))
"""


def test_a_kill_leaves_nothing(broker, client, tmp_path):
    """The loop of joblib#1351: the program and all of its helpers are killed."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "TENSORLEND_SOCKET": broker.address}
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, env=environment, start_new_session=True)
    # Two workers may write at once.
    assert process.stdout.readline().startswith(b"running") and client.list("joblib/*")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    # The semaphores that loky leaves behind.
    for semaphore in pathlib.Path("/dev/shm").glob(f"sem.loky-{process.pid}-*"):
        semaphore.unlink()
    eventually("the end of the names", lambda: not client.list("joblib/*") and client.stat()["clients"] == 1)
    assert not files(process.pid)


def test_a_search_of_scikit_learn(installed):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV

    random = np.random.default_rng(7)
    x = random.normal(size=(20_000, 20))
    before, y = files(), x @ np.arange(20.0)
    search = GridSearchCV(Ridge(), {"alpha": [0.1, 1.0, 10.0]}, n_jobs=2, cv=3).fit(x, y)
    assert search.best_params_ == {"alpha": 0.1} and files() <= before and not installed.list("joblib/*")
