"""Environments of the tests of SharedVectorEnv: in a module, so that spawned workers find them."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import gymnasium
import numpy as np
from gymnasium import spaces

PICTURE = spaces.Box(0, 255, (8, 6, 3), np.uint8)

SPACES = {
    "box": PICTURE,
    "float": spaces.Box(-1, 1, (4,), np.float32),
    "empty": spaces.Box(-1, 1, (0,), np.float32),
    "scalar": spaces.Box(-1, 1, (), np.float64),
    "discrete": spaces.Discrete(7),
    "binary": spaces.MultiBinary(5),
    "several": spaces.MultiDiscrete([3, 4]),
    "text": spaces.Text(8),
    "dict": spaces.Dict({"picture": PICTURE, "at": spaces.Box(-1, 1, (2,)), "kind": spaces.Discrete(3)}),
    "nested": spaces.Tuple(
        [spaces.Discrete(2), spaces.Dict({f"part {n}": spaces.Box(0, 9, (n + 1,), np.int64) for n in range(12)})]
    ),
}


class Sampled(gymnasium.Env):
    """Observations drawn from a space by the seed. An episode has three steps."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, name="box", length=3):
        self.observation_space = SPACES[name]
        self.action_space = spaces.Discrete(100)
        self.render_mode = "rgb_array"
        self.length = length
        self.told = []
        self.at = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.at = 0
        return self.observation_space.sample(), {"seed": -1 if seed is None else seed}

    def step(self, action):
        self.at += 1
        self.told.append(int(action))
        return self.observation_space.sample(), float(action), self.at == self.length, False, {"at": self.at}

    def render(self):
        return np.full((2, 2, 3), self.at, np.uint8)

    def add(self, one, two=0):
        return one + two + self.at


class Reused(gymnasium.Env):
    """An environment that writes all observations to one array."""

    observation_space = PICTURE
    action_space = spaces.Discrete(100)

    def __init__(self):
        self.picture = np.zeros(PICTURE.shape, np.uint8)
        self.at = 0

    def reset(self, *, seed=None, options=None):
        return self.picture, {}

    def step(self, action):
        self.at += 1
        self.picture[:] = self.at
        return self.picture, float(self.at), False, False, {}


class Unpicklable(Exception):
    """An exception that pickles but does not unpickle."""

    def __init__(self, one, two):
        super().__init__(one)


class Obeys(Reused):
    """An environment that does what its action says."""

    FAIL, UNPICKLABLE, KILL, EXIT, SLEEP, LOCAL, SHAPE, CHILD, HANG = range(1, 10)

    def __init__(self, log=None):
        super().__init__()
        self.log = log

    def step(self, action):
        if action == self.FAIL:
            raise ValueError("this action is refused")
        if action == self.UNPICKLABLE:
            raise Unpicklable("one", "two")
        if action == self.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == self.EXIT:
            os._exit(3)
        if action in (self.SLEEP, self.HANG):
            time.sleep(1 if action == self.SLEEP else 3600)
        result = super().step(action)
        if action == self.LOCAL:
            return *result[:4], {"unpicklable": lambda: None}
        if action == self.SHAPE:
            return np.zeros((2, 2), np.uint8), *result[1:]
        if action == self.CHILD:
            # The child holds the worker's end of the pipe.
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
            self.note(child.pid)
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def reset(self, *, seed=None, options=None):
        if options and options.get("fail"):
            raise KeyError("no such option")
        return super().reset()

    def close(self):
        self.note("closed")

    def note(self, what):
        if self.log is not None:
            with pathlib.Path(self.log).open("a") as file:
                file.write(f"{what}\n")


def fails_to_start():
    raise OSError("no simulator")


class Starts:
    """A function that makes an environment in the program, and fails in a worker."""

    def __init__(self):
        self.pid = os.getpid()

    def __call__(self):
        return Reused() if os.getpid() == self.pid else fails_to_start()
