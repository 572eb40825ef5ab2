"""TorchRL on SharedVectorEnv, against the same on gymnasium's AsyncVectorEnv."""

import functools
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("torchrl", reason="torchrl is not installed")

import gymnasium
from gymnasium.vector import AsyncVectorEnv
from gymnasium_samples import Sampled
from torchrl.envs import GymWrapper
from torchrl.envs.utils import check_env_specs

from tensorlend.gymnasium import SharedVectorEnv


class Silent(gymnasium.Wrapper):
    """Without infos, which TorchRL would want in each step."""

    def reset(self, **options):
        return self.env.reset(**options)[0], {}

    def step(self, action):
        return *self.env.step(action)[:4], {}


def made(name):
    return Silent(Sampled(name))


def policy(actions):
    """One-hot actions, the same in each run."""

    def act(tensordict):
        return tensordict.set("action", torch.nn.functional.one_hot(torch.tensor([0, 1]), actions))

    return act


def rolled(kind, name, **options):
    env = GymWrapper(kind([functools.partial(made, name)] * 2, autoreset_mode="SameStep", **options))
    assert env.batch_size == torch.Size([2])
    check_env_specs(env)
    env.set_seed(4)
    try:
        return env.rollout(20, policy(env.action_spec.shape[-1]), break_when_any_done=False)
    finally:
        env.close()


@pytest.mark.parametrize("name", ["box", "float"])
def test_the_same_as_async_vector_env(client, name):
    """Observations, rewards and ends of episodes, those of the last observations included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usual, shared = rolled(AsyncVectorEnv, name), rolled(SharedVectorEnv, name, client=client)
    keys = set(usual.keys(True, True))
    assert usual["next", "done"].any() and keys == set(shared.keys(True, True)) and len(keys) > 8
    for key in keys:
        assert torch.equal(usual[key], shared[key]), key
    assert client.list() == [] and list(client.streams()) == []
