"""Collects episodes of two environments in parallel, and keeps every observation without a copy.

Each environment is a point that a policy steers to the middle of a picture. Worker processes draw the pictures, and the
program views them where the workers wrote them. Prints the number of steps, the size of the views, and the mean reward.
Needs gymnasium.
"""

import gymnasium
import numpy as np

from tensorlend.gymnasium import SharedVectorEnv

SIZE = 64


class Point(gymnasium.Env):
    """A point on a picture. Actions move it up, down, left or right; the reward is the negative distance to the middle."""

    observation_space = gymnasium.spaces.Dict(
        {
            "picture": gymnasium.spaces.Box(0, 255, (SIZE, SIZE), np.uint8),
            "place": gymnasium.spaces.Box(0, SIZE - 1, (2,), np.int64),
        }
    )
    action_space = gymnasium.spaces.Discrete(4)
    moves = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.integers(0, SIZE, 2)
        return self.observe(), {}

    def step(self, action):
        self.place = np.clip(self.place + self.moves[action], 0, SIZE - 1)
        distance = float(np.abs(self.place - SIZE // 2).sum())
        return self.observe(), -distance, distance == 0, False, {}

    def observe(self):
        picture = np.zeros((SIZE, SIZE), np.uint8)
        picture[tuple(self.place)] = 255
        return {"picture": picture, "place": self.place}


def policy(place: np.ndarray) -> int:
    """Returns the action that moves a point along the axis on which it is farther from the middle."""
    away = place - SIZE // 2
    axis = int(np.abs(away).argmax())
    return 2 * axis + int(away[axis] < 0)


def main() -> None:
    envs = SharedVectorEnv([Point, Point], observations="views")
    observations, _ = envs.reset(seed=0)
    kept, rewards = [], []
    for _ in range(200):
        kept.append(observations)
        actions = np.array([policy(observation["place"]) for observation in observations])
        observations, reward, *_ = envs.step(actions)
        rewards.append(reward)
    envs.close()
    views = [view["picture"] for step in kept for view in step]
    assert all((view == 255).sum() == 1 for view in views)
    print(f"{len(kept)} steps, {sum(view.nbytes for view in views) >> 10} KiB in views, mean reward {np.mean(rewards):.2f}")


if __name__ == "__main__":
    main()
