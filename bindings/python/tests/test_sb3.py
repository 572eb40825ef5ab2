"""SharedVecEnv: stable-baselines3's vector environment with leases, against SubprocVecEnv."""

import multiprocessing
import os
import signal

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")

from gymnasium.utils.env_checker import data_equivalence
from gymnasium_samples import Sampled
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack, VecNormalize

from tensorlend.sb3 import SharedVecEnv

PATIENCE = 60


class Named:
    """A picklable function that makes an environment."""

    def __init__(self, name):
        self.name = name

    def __call__(self):
        return Sampled(self.name)


def episode(envs):
    """All that a vector environment returns in some steps, over the ends of episodes."""
    envs.seed(11)
    seen = [envs.reset(), envs.reset_infos]
    for step in range(8):
        seen.append(envs.step(np.array([step, step + 1])))
        seen.append(envs.reset_infos)
    return seen


@pytest.mark.parametrize("name", ["box", "float", "empty", "discrete", "binary", "several", "dict"])
def test_the_same_as_subproc_vec_env(left, name):
    found = []
    for kind, options in ((SubprocVecEnv, {}), (SharedVecEnv, {"client": left})):
        envs = kind([Named(name)] * 2, start_method="fork", **options)
        found.append(episode(envs))
        envs.close()
    assert data_equivalence(*found)


@pytest.mark.parametrize("method", [None, "spawn"])
def test_start_methods(left, method):
    envs = SharedVecEnv([Named("box")] * 2, start_method=method, client=left)
    kept = [envs.reset()]
    copies = [kept[0].copy()]
    for _ in range(20):
        kept.append(envs.step(np.zeros(2, np.int64))[0])
        copies.append(kept[-1].copy())
    assert all((one == other).all() and one.flags.writeable for one, other in zip(kept, copies, strict=True))
    envs.close()
    envs.close()


def test_other_calls(left):
    envs = SharedVecEnv([Named("box")] * 2, start_method="fork", client=left)
    envs.reset()
    assert envs.env_method("add", 2, two=3, indices=[1]) == [5] and envs.get_attr("length") == [3, 3]
    envs.set_attr("length", 9, indices=0)
    assert envs.get_attr("length") == [9, 3] and envs.has_attr("length") and not envs.has_attr("nothing")
    assert envs.env_is_wrapped(Monitor) == [False, False] and envs.render().shape == (4, 2, 3)
    envs.close()


def test_a_killed_worker(left):
    envs = SharedVecEnv([Named("box")] * 2, start_method="fork", client=left)
    envs.reset()
    os.kill(envs.processes[0].pid, signal.SIGKILL)
    with pytest.raises((EOFError, BrokenPipeError, ConnectionResetError)):
        envs.step(np.zeros(2, np.int64))
    # Without `close`.
    del envs


def test_an_environment_that_cannot_be_made(left):
    with pytest.raises((EOFError, ConnectionResetError)):
        SharedVecEnv([Named("no such space")] * 2, start_method="fork", client=left)


def test_its_own_daemon_ends():
    envs = SharedVecEnv([Named("dict")], start_method="fork")
    assert set(envs.reset()) == {"picture", "at", "kind"}
    envs.close()
    assert not multiprocessing.active_children()


def learned(kind, **options):
    envs = make_vec_env("CartPole-v1", n_envs=2, seed=3, vec_env_cls=kind, vec_env_kwargs={"start_method": "fork", **options})
    envs = VecFrameStack(VecNormalize(envs), 2)
    model = PPO("MlpPolicy", envs, n_steps=32, batch_size=32, n_epochs=1, seed=3, device="cpu")
    model.learn(128)
    envs.close()
    return {name: value.numpy().copy() for name, value in model.policy.state_dict().items()}


def test_learning(left):
    """The same parameters after training, through stable-baselines3's own wrappers."""
    check_env(Named("box")(), skip_render_check=True)
    assert data_equivalence(learned(SubprocVecEnv), learned(SharedVecEnv, client=left))
