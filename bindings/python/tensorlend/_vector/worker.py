"""A process that runs one environment."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from gymnasium import Env, Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode

from tensorlend._native import Client, Stream, connect
from tensorlend._vector.layout import split
from tensorlend.loader.control import Control
from tensorlend.loader.failure import Failure

#: Names that `call` rejects, because the worker would not notice their effect on the episode.
_REFUSED = ("reset", "step", "close", "_setattr", "_check_spaces")


@dataclass(frozen=True)
class WorkerMain:
    """The daemon and the names of the streams that the workers of a vector environment use."""

    address: tuple[str, ...]
    namespace: str
    streams: tuple[str, ...]

    def __call__(
        self,
        index: int,
        env_fn: Callable[[], Env[Any, Any]],
        pipe: Connection,
        parent_pipe: Connection,
        _shared_memory: Any,
        _error_queue: Any,
        autoreset_mode: AutoresetMode,
        semaphore: Any = None,
    ) -> None:
        """Runs worker `index`, with the arguments that gymnasium gives to workers."""
        parent_pipe.close()
        # Reset the handler. A forked worker inherits the program's handlers, with which SIGTERM
        # may not end the worker.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            control = Control(pipe)
            try:
                label = f"environment {index}"
                with connect(list(self.address), namespace=self.namespace, label=label) as client:
                    # A capacity of one message suffices, because the program takes a message
                    # before it requests the next one. If a call timed out, the stream drops its
                    # message, and the worker does not wait.
                    with client.stream(self.streams[index], capacity=1, policy="drop-oldest") as stream:
                        env = env_fn()
                        try:
                            _Worker(env, stream, client, autoreset_mode, semaphore).run(control, pipe)
                        finally:
                            env.close()
                            control.leave_if_orphaned()
            except (KeyboardInterrupt, Exception) as error:
                control.leave_if_orphaned()
                pipe.send((Failure.of(error, f"the process of environment {index}"), False))
        except (KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
            # Send no error. The program was interrupted, too, or has closed its end of the pipe.
            pass


class _Worker:
    def __init__(self, env: Env[Any, Any], stream: Stream, client: Client, mode: AutoresetMode, semaphore: Any) -> None:
        self._env = env
        self._space: Space[Any] = env.observation_space
        self._stream = stream
        self._client = client
        self._mode = mode
        self._permit = semaphore if semaphore is not None else nullcontext()
        self._sent = 0
        # The last observation. The worker sends it again if the program resets only other
        # environments.
        self._last: Any = None
        # Whether the next step begins an episode.
        self._ended = False

    def run(self, control: Control, pipe: Connection) -> None:
        """Executes commands until "close", or until the program has ended."""
        commands: dict[str, Callable[[Any], Any]] = {
            "step": self._step,
            "reset": self._reset,
            "reset-noop": self._keep,
            "_call": self._call,
            "_setattr": lambda data: self._env.set_wrapper_attr(*data),
            "_check_spaces": self._check_spaces,
        }
        while (order := control.wait()) is not None:
            command, data = order
            if command == "close":
                pipe.send((None, True))
                return
            pipe.send((commands[command](data), True))

    def _lend(self, observation: Any) -> tuple[int, Any]:
        """Sends the arrays of an observation. Returns the number of the message, and the rest of the observation."""
        self._last = observation
        arrays: list[np.ndarray[Any, Any]] = []
        rest = split(self._space, observation, arrays)
        if arrays:
            self._sent += 1
            value = arrays[0] if len(arrays) == 1 else {str(at): array for at, array in enumerate(arrays)}
            self._stream.send(value, timestamp=self._sent)
        return self._sent, rest

    def _reset(self, options: dict[str, Any]) -> Any:
        with self._permit:
            observation, info = self._env.reset(**options)
            self._ended = False
            return self._lend(observation), info

    def _keep(self, _data: None) -> Any:
        if self._last is None:
            raise RuntimeError(
                "options['reset_mask'] leaves out an environment that was never reset: reset all environments first"
            )
        return self._lend(self._last), {}

    def _step(self, action: Any) -> Any:
        with self._permit:
            if self._ended:
                self._ended = False
                observation, info = self._env.reset()
                return self._lend(observation), 0, False, False, info
            observation, reward, terminated, truncated, info = self._env.step(action)
            if terminated or truncated:
                if self._mode == AutoresetMode.NEXT_STEP:
                    self._ended = True
                elif self._mode == AutoresetMode.SAME_STEP:
                    first, reset_info = self._env.reset()
                    info = {"final_info": info, "final_obs": observation, **reset_info}
                    observation = first
            return self._lend(observation), reward, terminated, truncated, info

    def _call(self, data: Any) -> Any:
        name, arguments, options = data
        if name in _REFUSED:
            raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
        attribute = self._env.get_wrapper_attr(name)
        return attribute(*arguments, **options) if callable(attribute) else attribute

    def _check_spaces(self, data: Any) -> tuple[bool, bool]:
        mode, observations, actions = data
        same = observations == self._space if mode == "same" else is_space_dtype_shape_equiv(observations, self._space)
        return same, actions == self._env.action_space
