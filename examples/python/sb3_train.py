"""Teaches an agent of stable-baselines3 to steer a point to the middle of a picture, with lent observations.

One line differs from a program without tensorlend: `vec_env_cls`. Prints the mean reward of an episode before and after the
training. Needs torch and stable-baselines3.
"""

import gymnasium
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from tensorlend.sb3 import SharedVecEnv

SIZE = 36


class Point(gymnasium.Env):
    """A point on a picture. Actions move it to the left or to the right; the reward is the negative distance to the middle."""

    observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.left = int(self.np_random.integers(0, SIZE)), 20
        return self.observe(), {}

    def step(self, action):
        self.place = min(max(self.place + (2 if action else -2), 0), SIZE - 1)
        self.left -= 1
        return self.observe(), -abs(self.place - SIZE // 2) / SIZE, False, self.left == 0, {}

    def observe(self):
        picture = np.zeros((SIZE, SIZE, 1), np.uint8)
        picture[:, self.place] = 255
        return picture


def main() -> None:
    envs = make_vec_env(Point, n_envs=2, seed=0, vec_env_cls=SharedVecEnv)  # was: SubprocVecEnv
    model = PPO("CnnPolicy", envs, n_steps=64, batch_size=64, n_epochs=2, seed=0, device="cpu")
    before, _ = evaluate_policy(model, envs, n_eval_episodes=10)
    model.learn(1024)
    after, _ = evaluate_policy(model, envs, n_eval_episodes=10)
    envs.close()
    print(f"mean reward {before:.2f} before, {after:.2f} after")


if __name__ == "__main__":
    main()
