"""SharedVectorEnv: gymnasium's vector environment with leases."""

import functools
import gc
import multiprocessing
import os
import pathlib
import signal

import numpy as np
import pytest
from amounts import only_in_full

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed")

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from gymnasium_samples import SPACES, Obeys, Reused, Sampled, Starts
from waiting import gone, is_running

from tensorlend.gymnasium import SharedVectorEnv

CONTEXTS = ["fork", "forkserver", "spawn"]
NONE = np.zeros(2, np.int64)
#: Maximum time in which processes end on a busy machine, in seconds.
PATIENCE = 60


def changed(envs):
    """Keeps 100 observations of both environments; returns how many have changed since copies of them were taken."""
    kept = [envs.reset()[0]]
    copies = [[np.array(part) for part in kept[0]]]
    for _ in range(99):
        kept.append(envs.step(NONE)[0])
        copies.append([np.array(part) for part in kept[-1]])
    assert [int(copy[0][0, 0, 0]) for copy in copies] == list(range(100))

    def different():
        return sum(not all(map(np.array_equal, one, copy)) for one, copy in zip(kept, copies, strict=True))

    found = different()
    envs.close()
    assert different() == found
    return found


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("observations", ["batch", "views"])
def test_a_kept_observation_never_changes(observations, context):
    assert changed(SharedVectorEnv([Reused, Reused], observations=observations, context=context)) == 0


def test_the_check_finds_observations_that_change():
    """gymnasium itself returns one array again and again if it may not copy it."""
    assert changed(AsyncVectorEnv([Reused, Reused], shared_memory=True, copy=False)) == 99


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("name", SPACES)
def test_results_are_those_of_gymnasium(name, mode, left):
    """All but the mode DISABLED pass the end of an episode. gymnasium's shared memory loses text."""
    makers = [functools.partial(Sampled, name, length) for length in (3, 4)]
    actions = np.random.default_rng(0).integers(0, 100, (3 if mode == AutoresetMode.DISABLED else 12, 2))
    results = []
    for kind, options in ((AsyncVectorEnv, {"shared_memory": name != "text"}), (SharedVectorEnv, {"client": left})):
        envs = kind(makers, autoreset_mode=mode, **options)
        assert envs.metadata["autoreset_mode"] == mode and envs.num_envs == 2
        steps = [envs.reset(seed=[5, 6]), *map(envs.step, actions), envs.reset(seed=7), envs.step(actions[0])]
        assert all(step[0] in envs.observation_space for step in steps)
        results.append((steps, envs.observation_space, envs.single_observation_space, envs.action_space))
        envs.close()
    assert results[0][1:] == results[1][1:]
    for expected, found in zip(results[0][0], results[1][0], strict=True):
        assert len(expected) == len(found)
        for one, other in zip(expected, found, strict=True):
            assert data_equivalence(one, other), (one, other)


@pytest.mark.parametrize("name", SPACES)
def test_views_are_observations_of_each_environment(name, left):
    makers = [functools.partial(Sampled, name)] * 2
    with_views = SharedVectorEnv(makers, observations="views", client=left)
    batched = SharedVectorEnv(makers, client=left)
    for views, batch in (
        (with_views.reset(seed=1)[0], batched.reset(seed=1)[0]),
        (with_views.step(NONE)[0], batched.step(NONE)[0]),
    ):
        assert isinstance(views, tuple) and len(views) == 2
        assert all(view in SPACES[name] for view in views)
        gathered = gymnasium.vector.utils.concatenate(
            SPACES[name], views, gymnasium.vector.utils.create_empty_array(SPACES[name], 2)
        )
        assert data_equivalence(gathered, batch)
    del views
    with_views.close()
    batched.close()


def test_views_are_read_only_leases(left):
    envs = SharedVectorEnv([Reused, Reused], observations="views", client=left)
    view, _ = envs.reset()[0]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    assert left.leased() > 0
    envs.close()
    assert not view.any()
    del view, _


def test_batches_are_the_programs_own(left):
    envs = SharedVectorEnv([Reused, Reused], client=left)
    batch, _ = envs.reset()
    batch += 7
    following = envs.step(NONE)[0]
    assert (batch == 7).all() and (following == 1).all()
    assert left.leased() == 0
    envs.close()


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_the_options_of_gymnasium_change_nothing(left, shared_memory, copy):
    envs = SharedVectorEnv([Reused, Reused], shared_memory, copy, "fork", client=left)
    kept = [envs.reset()[0], *(envs.step(NONE)[0] for _ in range(9))]
    assert [int(batch[0, 0, 0, 0]) for batch in kept] == list(range(10))
    envs.close()
    envs = SharedVectorEnv([Reused], shared_memory=shared_memory, copy=copy, client=left)
    envs.close()


def test_memory_of_batches_is_used_again_when_nothing_refers_to_it(left):
    envs = SharedVectorEnv([Reused, Reused], client=left)
    envs.reset()
    addresses = {envs.step(NONE)[0].ctypes.data for _ in range(20)}
    assert len(addresses) <= 2
    # Any object that refers to the memory keeps it: a slice of the batch, or a buffer of a slice.
    kept = [(memoryview(batch[1, 2]), batch[:1, 1:].T, int(batch[0, 0, 0, 0])) for batch in (envs.step(NONE)[0] for _ in range(20))]
    assert all((np.asarray(buffer) == number).all() and (part == number).all() for buffer, part, number in kept)
    assert len({part.ctypes.data for _, part, _ in kept}) == 20
    envs.close()
    assert all((part == number).all() for _, part, number in kept)


def test_no_daemon_is_needed(monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORLEND_SOCKET", str(tmp_path / "no-daemon.sock"))
    envs = SharedVectorEnv([Reused, Reused])
    assert envs.reset()[0].shape == (2, 8, 6, 3)
    envs.close()


def test_seeds(left):
    envs = SharedVectorEnv([Sampled, Sampled], client=left)
    assert envs.reset(seed=3)[1]["seed"].tolist() == [3, 4]
    assert envs.reset(seed=[8, None])[1]["seed"].tolist() == [8, -1]
    assert envs.reset()[1]["seed"].tolist() == [-1, -1]
    assert (envs.reset(seed=3)[0] == envs.reset(seed=3)[0]).all()
    # gymnasium before 1.4 raises AssertionError.
    with pytest.raises((ValueError, AssertionError), match="length"):
        envs.reset(seed=[1, 2, 3])
    envs.close()


def test_a_reset_of_some_environments(left):
    envs = SharedVectorEnv([Sampled, Sampled], autoreset_mode="Disabled", client=left)
    with pytest.raises(RuntimeError, match="never reset"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    envs.close()
    envs = SharedVectorEnv([Sampled, Sampled], autoreset_mode="Disabled", client=left)
    envs.reset(seed=1)
    before = envs.step(NONE)[0]
    after, infos = envs.reset(options={"reset_mask": np.array([True, False])})
    assert (after[1] == before[1]).all() and (after[0] != before[0]).any()
    assert infos["_seed"].tolist() == [True, False]
    assert envs.get_attr("at") == (0, 1)
    envs.close()


def test_calls_in_two_parts(left):
    envs = SharedVectorEnv([Sampled, Sampled], client=left)
    for wait in (envs.reset_wait, envs.step_wait, envs.call_wait):
        with pytest.raises(NoAsyncCallError):
            wait()
    envs.reset_async()
    for begin in (
        envs.reset_async,
        lambda: envs.step_async(NONE),
        lambda: envs.call_async("render"),
        lambda: envs.set_attr("at", 1),
    ):
        with pytest.raises(AlreadyPendingCallError):
            begin()
    with pytest.raises(NoAsyncCallError):
        envs.step_wait()
    assert envs.reset_wait(timeout=PATIENCE)[0].shape == (2, 8, 6, 3)
    envs.step_async(NONE)
    assert envs.step_wait(timeout=PATIENCE)[1].tolist() == [0, 0]
    envs.close()


def test_after_a_timeout_come_the_results_of_the_next_call(left):
    """gymnasium's own class returns the late rewards in place of those of the next call."""
    envs = SharedVectorEnv([Obeys, Obeys], client=left)
    envs.reset()
    envs.step_async(np.array([Obeys.SLEEP, 0]))
    with pytest.raises(multiprocessing.TimeoutError, match=r"timed out after 0\.01"):
        envs.step_wait(timeout=0.01)
    observations, rewards, *_ = envs.step(NONE)
    assert observations[:, 0, 0, 0].tolist() == rewards.tolist() == [2, 2]
    envs.close()


def test_calls_and_attributes(left):
    envs = SharedVectorEnv([Sampled, Sampled], client=left)
    envs.reset()
    assert envs.call("add", 1, two=2) == (3, 3)
    assert envs.get_attr("length") == (3, 3)
    envs.set_attr("at", [1, 2])
    assert envs.call("add", 0) == (1, 2)
    envs.set_attr("at", 5)
    assert [int(picture[0, 0, 0]) for picture in envs.render()] == [5, 5]
    assert len(envs.np_random_seed) == 2
    with pytest.raises(ValueError, match="length"):
        envs.set_attr("at", [1, 2, 3])
    with pytest.raises(ValueError, match="use `step` directly"):
        envs.call("step", 1)
    envs.close()


@pytest.mark.parametrize(
    ("action", "kind", "message"),
    [
        (Obeys.FAIL, ValueError, "(?s)this action is refused.*|in step"),
        (Obeys.UNPICKLABLE, RuntimeError, "(?s)Caught Unpicklable in the process of environment 1.*raise Unpicklable"),
        (Obeys.LOCAL, Exception, "(?s)environment 1.*lambda"),
        (Obeys.SHAPE, ValueError, r"an observation of shape \(2, 2\) in a space of shape \(8, 6, 3\)"),
        (Obeys.KILL, RuntimeError, r"the process of environment 1 \(pid \d+\) was killed by SIGKILL: close"),
        (Obeys.EXIT, RuntimeError, r"the process of environment 1 \(pid \d+\) exited with status 3: close"),
    ],
)
@pytest.mark.parametrize("observations", ["batch", "views"])
def test_a_worker_that_fails(observations, action, kind, message, left):
    envs = SharedVectorEnv([Obeys, Obeys], observations=observations, client=left)
    kept = envs.reset()[0]
    with pytest.raises(kind, match=message):
        envs.step(np.array([0, action]))
    with pytest.raises(RuntimeError, match="has lost a worker by an earlier error"):
        envs.step(NONE)
    envs.close()
    assert not np.array(kept).any()


def test_a_worker_that_fails_in_reset(left):
    envs = SharedVectorEnv([Obeys, Obeys], client=left)
    with pytest.raises(KeyError, match="no such option") as caught:
        envs.reset(options={"fail": True})
    assert any("environment 1" in note for note in caught.value.__notes__)
    envs.close()


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_killed_worker_leaves_nothing(context, left):
    envs = SharedVectorEnv([Reused] * 3, context=context, client=left)
    envs.reset()
    os.kill(envs.processes[1].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="environment 1 .* was killed by SIGKILL"):
        for _ in range(2):
            envs.step(np.zeros(3, np.int64))
    envs.close()


def test_a_killed_worker_whose_child_has_its_pipe(left, tmp_path):
    log = tmp_path / "log"
    envs = SharedVectorEnv([functools.partial(Obeys, log), Reused], client=left)
    envs.reset()
    envs.step_async(np.array([Obeys.CHILD, 0]))
    with pytest.raises(RuntimeError, match="was killed by SIGKILL"):
        envs.step_wait(timeout=PATIENCE)
    child = int(log.read_text().split()[-1])
    assert is_running(child)
    os.kill(child, signal.SIGKILL)
    envs.close()


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_worker_that_does_not_start(context, left):
    maker = Starts()
    with pytest.raises(OSError, match="no simulator"):
        SharedVectorEnv([maker, maker], context=context, client=left)


def test_spaces_that_differ(left):
    makers = [functools.partial(Sampled, "box"), functools.partial(Sampled, "float")]
    with pytest.raises(RuntimeError, match="not equivalent"):
        SharedVectorEnv(makers, client=left)
    with pytest.raises(ValueError, match="dtypes"):
        SharedVectorEnv(makers, observation_mode="different", client=left)


def test_options_that_do_not_exist(left):
    with pytest.raises(ValueError, match='give "batch" or "views"'):
        SharedVectorEnv([Reused], observations="both", client=left)
    with pytest.raises(TypeError, match="leave out worker="):
        SharedVectorEnv([Reused], client=left, worker=print)
    with pytest.raises(TypeError):
        SharedVectorEnv([Reused], client=left, no_such_option=1)


def test_close(left, tmp_path):
    log = tmp_path / "log"
    envs = SharedVectorEnv([functools.partial(Obeys, log)] * 2, client=left)
    # gymnasium makes one environment in the program, to read its spaces.
    assert log.read_text() == "closed\n"
    envs.reset()
    envs.close()
    assert log.read_text() == "closed\n" * 3
    assert [process.exitcode for process in envs.processes] == [0, 0]
    envs.close()
    for call in (envs.reset, lambda: envs.step(NONE), lambda: envs.call("add", 1), lambda: envs.set_attr("at", 1)):
        with pytest.raises(ClosedEnvironmentError):
            call()


@pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting")
@pytest.mark.parametrize("how", [{"terminate": True}, {"timeout": 0.01}, {}])
def test_close_during_a_step(how, left):
    envs = SharedVectorEnv([Obeys, Obeys], client=left)
    envs.reset()
    envs.step_async(np.array([Obeys.SLEEP, 0]))
    envs.close(**how)
    codes = [process.exitcode for process in envs.processes]
    # The other worker is idle: it may notice that its pipe was closed before SIGTERM arrives.
    assert codes == [0, 0] if not how else codes[0] == -signal.SIGTERM and codes[1] in (0, -signal.SIGTERM)


def test_a_vector_environment_that_nobody_refers_to(left):
    envs = SharedVectorEnv([Reused, Reused], client=left)
    pids = [process.pid for process in envs.processes]
    del envs
    gc.collect()
    assert not any(map(is_running, pids))


PROGRAM = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from gymnasium_samples import Obeys
from tensorlend.gymnasium import SharedVectorEnv
if __name__ == "__main__":
    envs = SharedVectorEnv([Obeys, Obeys], context=sys.argv[2], daemon=sys.argv[3] == "daemon")
    kept = [envs.reset()[0], envs.step(np.zeros(2, np.int64))[0]]
    envs.step_async(np.array([Obeys.HANG, 0]) if sys.argv[5] == "first" else np.array([0, Obeys.HANG]))
    print(*(process.pid for process in envs.processes), flush=True)
    if sys.argv[4] == "killed":
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("end", "hangs"),
    [
        ("killed", "first"),
        ("not closed", "last"),
        *(only_in_full(*values, why="half a minute") for values in [("killed", "last"), ("not closed", "first")]),
    ],
)
@pytest.mark.parametrize("daemonic", ["daemon", "no daemon"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_workers_end_with_their_program(context, daemonic, end, hangs, script, tmp_path):
    """One of the workers hangs."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    here = str(pathlib.Path(__file__).parent)
    run = "import subprocess, sys; sys.exit(abs(subprocess.run([sys.executable, *sys.argv[1:]]).returncode))"
    done = script(run, str(program), here, context, daemonic, end, hangs, check=False)
    assert done.returncode == (9 if end == "killed" else 0), done.stderr
    # multiprocessing reports that it deletes the semaphores of a killed program.
    said = [line for line in done.stderr.splitlines() if "resource_tracker" not in line and "warnings.warn" not in line]
    assert said == []
    pids = list(map(int, done.stdout.split()))
    assert len(pids) == 2
    gone(pids)


def test_wrappers_of_gymnasium(left):
    envs = RecordEpisodeStatistics(SharedVectorEnv([Sampled, Sampled], client=left))
    envs.reset(seed=1)
    for _ in range(3):
        infos = envs.step(np.array([2, 5]))[4]
    assert infos["episode"]["r"].tolist() == [6, 15]
    envs.close()
