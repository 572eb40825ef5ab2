"""A vector environment of stable-baselines3 whose workers lend their observations: see docs/how-to/gymnasium.md."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from multiprocessing import util
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    SubprocVecEnv,
    VecEnv,
)
from stable_baselines3.common.vec_env.base_vec_env import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    CloudpickleWrapper,
)
from stable_baselines3.common.vec_env.subproc_vec_env import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    _worker,
)

from tensorlend._native import Client, Dataset, Embedded, Stream, Subscription, connect, embedded
from tensorlend._vector.end import end

__all__ = ["SharedVecEnv"]

#: Commands whose reply begins with an observation.
_OBSERVING = ("step", "reset")


class SharedVecEnv(SubprocVecEnv):  # type: ignore[misc, unused-ignore]
    """A `SubprocVecEnv` of stable-baselines3 whose workers lend the arrays of observations.

    Use it as `SubprocVecEnv`, with the same methods and errors: `make_vec_env(..., vec_env_cls=SharedVecEnv)`. A worker
    copies the arrays of an observation into lent memory, and the program stacks them from there. Terminal observations,
    rewards and infos travel through a pipe.

    Parameters
    ----------
    env_fns : list of callable
        Functions that make the environments, one for each worker.
    start_method : {"fork", "forkserver", "spawn"} or None, default None
        How multiprocessing starts the workers. None is forkserver.
    client : Client or None, default None
        The client that receives observations. None starts a daemon in this process, which ends with `close`.
    """

    def __init__(
        self, env_fns: list[Callable[[], Any]], start_method: str | None = None, client: Client | None = None
    ) -> None:
        self.waiting = False
        self.closed = False
        daemon: Embedded | None = None
        if client is None:
            daemon = embedded()
            client = daemon.connect(label="stable-baselines3")
        address = tuple(os.fspath(path) for path in client.address)
        token = secrets.token_hex(6)
        streams = [f"sb3/{token}/{index}" for index in range(len(env_fns))]
        remotes: list[_Receiver] = []
        self.processes = []
        self._finish = util.Finalize(self, end, (client, daemon, self.processes, remotes, [], streams), exitpriority=100)
        context: Any = multiprocessing.get_context(start_method or "forkserver")
        try:
            for name, env_fn in zip(streams, env_fns, strict=True):
                here, there = context.Pipe()
                remotes.append(_Receiver(here, client, name))
                arguments = (address, client.namespace, name, there, here, CloudpickleWrapper(env_fn))
                process = context.Process(target=_work, args=arguments, daemon=True)
                process.start()
                self.processes.append(process)
                there.close()
            self.remotes = tuple(remotes)
            self.remotes[0].send(("get_spaces", None))
            VecEnv.__init__(self, len(env_fns), *self.remotes[0].recv())
        except BaseException:
            self._finish()
            raise

    def close(self) -> None:
        """Ends the workers, and the daemon that this vector environment started."""
        try:
            super().close()
        finally:
            self._finish()


class _Receiver:
    """The program's end of a worker's pipe. It joins observations from their two parts."""

    def __init__(self, pipe: Connection, client: Client, stream: str) -> None:
        self._pipe = pipe
        self._stream = stream
        self._client = client
        self._command = ""
        self._subscription: Subscription | None = None

    def send(self, command: tuple[str, Any]) -> None:
        self._command = command[0]
        self._pipe.send(command)

    def recv(self) -> Any:
        reply = self._pipe.recv()
        if self._command not in _OBSERVING:
            return reply
        lent, observation, *others = reply
        return (_join(observation, self._arrays()) if lent else observation, *others)

    def _arrays(self) -> Iterator[Any]:
        if self._subscription is None:
            self._subscription = self._client.subscribe(self._stream, start="oldest")
        message = self._subscription.try_recv()
        if message is None:
            raise RuntimeError(f"an observation is lost: another process took part in the stream {self._stream!r}")
        value = message.value
        return iter(value.numpy() if isinstance(value, Dataset) else (value.numpy(),))

    def close(self) -> None:
        self._pipe.close()
        if self._subscription is not None:
            self._subscription.close()


class _Sender:
    """A worker's end of its pipe. It sends the arrays of observations through a stream."""

    def __init__(self, pipe: Connection, stream: Stream) -> None:
        self._pipe = pipe
        self._stream = stream
        self._command = ""

    def recv(self) -> Any:
        command = self._pipe.recv()
        self._command = command[0]
        return command

    def send(self, reply: Any) -> None:
        if self._command in _OBSERVING:
            arrays: list[Any] = []
            observation = _split(reply[0], arrays)
            if arrays:
                self._stream.send(arrays[0] if len(arrays) == 1 else {str(at): array for at, array in enumerate(arrays)})
            reply = (bool(arrays), observation, *reply[1:])
        self._pipe.send(reply)

    def close(self) -> None:
        self._pipe.close()


class _Array:
    """Stands for an array of an observation."""


def _split(observation: Any, arrays: list[Any]) -> Any:
    """Appends an observation's arrays to `arrays`, and returns the rest of it."""
    if isinstance(observation, dict):
        return {name: _split(part, arrays) for name, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_split(part, arrays) for part in observation)
    if isinstance(observation, np.ndarray) and observation.ndim > 0 and observation.dtype.kind in "biufc":
        arrays.append(observation)
        return _Array
    return observation


def _join(observation: Any, arrays: Iterator[Any]) -> Any:
    """Returns the observation that `_split` took apart."""
    if isinstance(observation, dict):
        return {name: _join(part, arrays) for name, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_join(part, arrays) for part in observation)
    return next(arrays) if observation is _Array else observation


def _work(address: tuple[str, ...], namespace: str, name: str, pipe: Connection, parent: Connection, env_fn: Any) -> None:
    """Runs one environment, by stable-baselines3's own function."""
    # A forked worker inherits the program's handlers, which would prevent SIGTERM from ending the
    # worker.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with connect(list(address), namespace=namespace, label="environment") as client:
        # The program takes each message before it requests the next one.
        with client.stream(name, capacity=1, policy="drop-oldest") as stream:
            sender: Any = _Sender(pipe, stream)
            _worker(sender, parent, env_fn)
