"""A vector environment of gymnasium whose observations are leases: see docs/how-to/gymnasium.md."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import util
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from gymnasium import Env, Space, logger
from gymnasium.error import NoAsyncCallError
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import concatenate, create_empty_array

from tensorlend._errors import StreamEndedError
from tensorlend._native import Client, Dataset, Embedded, Subscription, embedded
from tensorlend._vector.blocks import Blocks
from tensorlend._vector.end import end
from tensorlend._vector.layout import arrays_of, join
from tensorlend._vector.replies import Replies
from tensorlend._vector.worker import WorkerMain

__all__ = ["Observations", "SharedVectorEnv"]

#: The form of the observations of `reset` and `step`. This is one array for all environments, or a
#: tuple of views.
Observations: TypeAlias = Literal["batch", "views"]


class SharedVectorEnv(AsyncVectorEnv):  # type: ignore[type-arg, unused-ignore]
    """A vector environment whose workers lend their observations. An observation that you keep
    never changes.

    Use it as `gymnasium.vector.AsyncVectorEnv`, with the same methods and errors. Each worker copies the arrays of an
    observation into a slot of its own, and no later step writes to that slot while a lease on it exists. Infos, rewards,
    scalars and text travel through a pipe.

    Parameters
    ----------
    env_fns : sequence of callable
        Functions that make the environments, one for each worker.
    shared_memory : bool, default True
        Has no effect. The workers always use shared memory.
    copy : bool, default True
        Has no effect. The program never gets an observation that a later step changes.
    context : {"fork", "forkserver", "spawn"} or None, default None
        How multiprocessing starts the workers. None is Python's default.
    daemon : bool, default True
        Whether workers are daemonic processes, which may not start processes of their own by multiprocessing.
    worker : None
        Must be None. A worker function of the program cannot lend observations.
    observation_mode : {"same", "different"} or tuple of Space, default "same"
        As for `AsyncVectorEnv`.
    autoreset_mode : AutoresetMode or str, default AutoresetMode.NEXT_STEP
        As for `AsyncVectorEnv`. In the mode SAME_STEP, the last observation of an episode is pickled, as part of the infos.
    observations : {"batch", "views"}, default "batch"
        "batch": an array for all environments, as gymnasium batches them. The program gathers the
        observations with one copy, in memory that it no longer uses. "views": a tuple with the
        observation of each environment, without a copy. The arrays of views are read-only. Each
        observation is a lease, so keep fewer than 4096 of them.
    client : Client or None, default None
        The client that receives observations. None starts a daemon in this process, which ends with `close`.
    **options : Any
        Further options of `AsyncVectorEnv`, such as `max_concurrency`.

    Raises
    ------
    ValueError
        An option has a value that it does not allow.
    TypeError
        `worker` is not None, or an option does not exist.
    RuntimeError
        The environments' spaces differ, or a worker could not be started.
    """

    parent_pipes: list[Any]
    processes: list[Any]

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env[Any, Any]]],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: None = None,
        observation_mode: Any = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        *,
        observations: Observations = "batch",
        client: Client | None = None,
        **options: Any,
    ) -> None:
        if observations not in get_args(Observations):
            raise ValueError(f'observations={observations!r}: give "batch" or "views"')
        if worker is not None:
            raise TypeError("SharedVectorEnv has workers of its own: leave out worker=, or use AsyncVectorEnv")
        self._views = observations == "views"
        self._blocks = Blocks()
        self._daemon: Embedded | None = None
        if client is None:
            self._daemon = embedded()
            client = self._daemon.connect(label="gymnasium")
        self._client = client
        token = secrets.token_hex(6)
        self._streams = tuple(f"gymnasium/{token}/{index}" for index in range(len(env_fns)))
        self._subscriptions: list[Subscription] = []
        self.parent_pipes, self.processes = [], []
        address = tuple(os.fspath(path) for path in self._client.address)
        main: Any = WorkerMain(address, self._client.namespace, self._streams)
        try:
            super().__init__(
                env_fns,
                shared_memory=False,
                context=context,
                daemon=daemon,
                worker=main,
                observation_mode=observation_mode,
                autoreset_mode=autoreset_mode,
                **options,
            )
        except BaseException:
            end(self._client, self._daemon, self.processes, self.parent_pipes, self._subscriptions, self._streams)
            raise

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Waits for the resets that `reset_async` began.

        Parameters
        ----------
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Returns
        -------
        tuple
            Observations and infos.
        """
        results = self._results(AsyncState.WAITING_RESET, timeout)
        infos: dict[str, Any] = {}
        for index, (_, info) in enumerate(results):
            infos = self._add_info(infos, info, index)
        return self._observations([sent for sent, _ in results]), infos

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Waits for the steps that `step_async` began.

        Parameters
        ----------
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Returns
        -------
        tuple
            Observations, rewards, terminations, truncations and infos.
        """
        results = self._results(AsyncState.WAITING_STEP, timeout)
        sent, rewards, terminations, truncations, step_infos = zip(*results, strict=True)
        infos: dict[str, Any] = {}
        for index, info in enumerate(step_infos):
            infos = self._add_info(infos, info, index)
        return (
            self._observations(sent),
            np.array(rewards, dtype=np.float64),
            np.array(terminations, dtype=np.bool_),
            np.array(truncations, dtype=np.bool_),
            infos,
        )

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ends the workers, and the daemon that this vector environment started. Views stay valid.

        Parameters
        ----------
        timeout : float or None, default None
            Maximum wait in seconds for a pending call, and for the workers. After it the workers
            are terminated. None waits without limit.
        terminate : bool, default False
            Whether to terminate the workers at once.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            if self._state != AsyncState.DEFAULT:
                logger.warn(f"Calling `close` while waiting for a pending call to `{self._state.value}` to complete.")
                getattr(self, f"{self._state.value}_wait")(0 if terminate else timeout)
            if not terminate:
                pipes = [pipe for pipe in self.parent_pipes if pipe.failure is None]
                for pipe in pipes:
                    pipe.send(("close", None))
                # A worker closes its environment after this reply.
                if all(pipe.poll(_left(deadline)) for pipe in pipes):
                    for process in self.processes:
                        process.join(_left(deadline))
        except multiprocessing.TimeoutError:
            pass
        finally:
            self._finish()
            self.closed = True

    def _results(self, state: AsyncState, timeout: float | None) -> list[Any]:
        """Waits for the replies to a call."""
        self._assert_is_running()
        if self._state != state:
            raise NoAsyncCallError(
                f"Calling `{state.value}_wait` without any prior call to `{state.value}_async`.", state.value
            )
        if not self._poll_pipe_envs(timeout):
            self._state = AsyncState.DEFAULT
            raise multiprocessing.TimeoutError(f"The call to `{state.value}_wait` has timed out after {timeout} second(s).")
        self._state = AsyncState.DEFAULT
        results, successes = zip(*[pipe.recv() for pipe in self.parent_pipes], strict=True)
        self._raise_if_errors(successes)
        return list(results)

    def _observations(self, sent: Iterable[tuple[int, Any]]) -> Any:
        views = tuple(self._view(index, *parts) for index, parts in enumerate(sent))
        if self._views:
            return views
        space: Space[Any] = self.single_observation_space
        batch: Any = create_empty_array(space, self.num_envs, fn=self._blocks.empty)
        return concatenate(space, views, batch)

    def _view(self, index: int, number: int, rest: Any) -> Any:
        """Returns the observation of one environment."""
        arrays: Iterable[Any] = ()
        if self._has_arrays:
            subscription = self._subscriptions[index]
            try:
                message = subscription.try_recv()
                while message is not None and message.timestamp < number:
                    # Skip the observation of a call that timed out.
                    message = subscription.try_recv()
            except StreamEndedError:
                message = None
            if message is None or message.timestamp != number:
                raise RuntimeError(
                    f"the observation of environment {index} is lost: its stream was ended, or another process took part in it"
                )
            value = message.value
            arrays = value.numpy() if isinstance(value, Dataset) else (value.numpy(),)
        return join(self.single_observation_space, rest, iter(arrays))

    def _check_spaces(self) -> None:
        # AsyncVectorEnv calls this method at the end of its construction, after it has started the
        # workers.
        processes, pipes = self.processes, self.parent_pipes
        self.parent_pipes = [
            Replies(index, pipe, process) for index, (pipe, process) in enumerate(zip(pipes, processes, strict=True))
        ]
        self._finish = util.Finalize(
            self,
            end,
            (self._client, self._daemon, processes, self.parent_pipes, self._subscriptions, self._streams),
            exitpriority=100,
        )
        super()._check_spaces()  # type: ignore[no-untyped-call, unused-ignore]
        self._has_arrays = arrays_of(self.single_observation_space) > 0
        # The workers opened their streams before they replied.
        self._subscriptions += [self._client.subscribe(name, start="oldest") for name in self._streams]

    def _assert_is_running(self) -> None:
        super()._assert_is_running()
        for pipe in self.parent_pipes:
            failure = getattr(pipe, "failure", None)
            if failure is not None and self._state == AsyncState.DEFAULT:
                raise RuntimeError(
                    "this vector environment has lost a worker by an earlier error: close it, and make a new one"
                ) from failure

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        if all(successes):
            return
        self._state = AsyncState.DEFAULT
        failures = [pipe.failure for pipe in self.parent_pipes if pipe.failure is not None]
        for other in failures[1:]:
            failures[0].add_note(str(other))
        raise failures[0]

    def __del__(self) -> None:
        """Does nothing, because the finalizer ends the workers."""


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
