"""The client's methods for models and scripts. ``tensorlend-runner`` runs models. No process runs
scripts, so these methods only check the arguments as SmartRedis does.
"""

import inspect
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import tensorlend

from .calls import Calls
from .error import RedisNotImplementedError, RedisRuntimeError
from .keys import poll_name
from .util import api_call, init_default

__all__ = ["ModelCalls"]

_BACKENDS = ("TF", "TFLITE", "TORCH", "ONNX")

Names = str | list[str] | None


#: Default of ``SR_MODEL_TIMEOUT``, the time in milliseconds for which run_model waits for a
#: runner's response.
_MODEL_TIMEOUT_MS = 60_000


def _not_here_yet() -> NoReturn:
    raise RedisNotImplementedError("scripts are not here: export what they do to ONNX, and run it as a model")


class ModelCalls(Calls):
    """The client's methods for models and scripts. A method that is not implemented raises the
    error for its arguments, and otherwise :class:`RedisNotImplementedError`.
    """

    @api_call
    def set_function(self, name: str, function: Callable[..., Any], device: str = "CPU") -> None:
        """Stores a function as a script. Not implemented."""
        _check_device(device)
        inspect.getsource(function)
        _not_here_yet()

    @api_call
    def set_function_multigpu(self, name: str, function: Callable[..., Any], first_gpu: int, num_gpus: int) -> None:
        """Stores a function as a script for several GPUs. Not implemented."""
        _check_gpus(first_gpu, num_gpus)
        inspect.getsource(function)
        _not_here_yet()

    @api_call
    def set_script(self, name: str, script: str, device: str = "CPU") -> None:
        """Stores a script. Not implemented."""
        _check_device(device)
        _not_here_yet()

    @api_call
    def set_script_multigpu(self, name: str, script: str, first_gpu: int, num_gpus: int) -> None:
        """Stores a script for several GPUs. Not implemented."""
        _check_gpus(first_gpu, num_gpus)
        _not_here_yet()

    @api_call
    def set_script_from_file(self, name: str, file: str, device: str = "CPU") -> None:
        """Stores a file as a script. Not implemented.

        :raises FileNotFoundError: if there is no such file
        """
        _check_device(device)
        _check_file(file)
        _not_here_yet()

    @api_call
    def set_script_from_file_multigpu(self, name: str, file: str, first_gpu: int, num_gpus: int) -> None:
        """Stores a file as a script for several GPUs. Not implemented.

        :raises FileNotFoundError: if there is no such file
        """
        _check_file(file)
        _check_gpus(first_gpu, num_gpus)
        _not_here_yet()

    @api_call
    def get_script(self, name: str) -> str:
        """Returns a script's text. Not implemented."""
        _not_here_yet()

    @api_call
    def run_script(self, name: str, fn_name: str, inputs: Names, outputs: Names) -> None:
        """Runs a function of a script on tensors. Not implemented."""
        _names(inputs)
        _names(outputs)
        _not_here_yet()

    @api_call
    def run_script_multigpu(
        self, name: str, fn_name: str, inputs: Names, outputs: Names, offset: int, first_gpu: int, num_gpus: int
    ) -> None:
        """Runs a function of a script on one of several GPUs. Not implemented."""
        _names(inputs)
        _names(outputs)
        _check_gpus(first_gpu, num_gpus)
        _not_here_yet()

    @api_call
    def delete_script(self, name: str) -> None:
        """Deletes a script. Not implemented."""
        _not_here_yet()

    @api_call
    def delete_script_multigpu(self, name: str, first_gpu: int, num_gpus: int) -> None:
        """Deletes a script from several GPUs. Not implemented."""
        _check_gpus(first_gpu, num_gpus)
        _not_here_yet()

    @api_call
    def set_model(
        self,
        name: str,
        model: bytes,
        backend: str,
        device: str = "CPU",
        batch_size: int = 0,
        min_batch_size: int = 0,
        min_batch_timeout: int = 0,
        tag: str = "",
        inputs: Names = None,
        outputs: Names = None,
    ) -> None:
        """Adds a model from the bytes of an ONNX file. ``tensorlend-runner`` runs the model, on the
        CPU for every ``device``.

        :raises RedisNotImplementedError: for other backends
        """
        _check_device(device)
        batch = (batch_size, min_batch_size, min_batch_timeout)
        self._set_model(name, model, backend, batch, tag, _names(inputs) + _names(outputs))

    @api_call
    def set_model_multigpu(
        self,
        name: str,
        model: bytes,
        backend: str,
        first_gpu: int,
        num_gpus: int,
        batch_size: int = 0,
        min_batch_size: int = 0,
        min_batch_timeout: int = 0,
        tag: str = "",
        inputs: Names = None,
        outputs: Names = None,
    ) -> None:
        """Adds a model as ``set_model`` does. All runners of the model share its callers."""
        _check_gpus(first_gpu, num_gpus)
        batch = (batch_size, min_batch_size, min_batch_timeout)
        self._set_model(name, model, backend, batch, tag, _names(inputs) + _names(outputs))

    @api_call
    def set_model_from_file(
        self,
        name: str,
        model_file: str,
        backend: str,
        device: str = "CPU",
        batch_size: int = 0,
        min_batch_size: int = 0,
        min_batch_timeout: int = 0,
        tag: str = "",
        inputs: Names = None,
        outputs: Names = None,
    ) -> None:
        """Adds the model in an ONNX file, as ``set_model`` does.

        :raises FileNotFoundError: if there is no such file
        """
        _check_device(device)
        _check_file(model_file)
        batch = (batch_size, min_batch_size, min_batch_timeout)
        self._set_model(name, Path(model_file).read_bytes(), backend, batch, tag, _names(inputs) + _names(outputs))

    @api_call
    def set_model_from_file_multigpu(
        self,
        name: str,
        model_file: str,
        backend: str,
        first_gpu: int,
        num_gpus: int,
        batch_size: int = 0,
        min_batch_size: int = 0,
        min_batch_timeout: int = 0,
        tag: str = "",
        inputs: Names = None,
        outputs: Names = None,
    ) -> None:
        """Adds a model as ``set_model_from_file`` does. All runners of the model share its callers.

        :raises FileNotFoundError: if there is no such file
        """
        _check_file(model_file)
        _check_gpus(first_gpu, num_gpus)
        batch = (batch_size, min_batch_size, min_batch_timeout)
        self._set_model(name, Path(model_file).read_bytes(), backend, batch, tag, _names(inputs) + _names(outputs))

    @api_call
    def get_model(self, name: str) -> bytes:
        """Returns a model's bytes.

        :raises RedisRuntimeError: if there is no such model
        """
        key = self._prefixes.model(name, reads=True)
        try:
            with self._client.get_model(key) as lease:
                return bytes(memoryview(lease))
        except tensorlend.NotFoundError as e:
            raise RedisRuntimeError(f"there is no model {name!r}", key=key) from e

    @api_call
    def run_model(self, name: str, inputs: Names = None, outputs: Names = None) -> None:
        """Runs a model on tensors, and publishes its outputs. Inputs and outputs are in the model's order.

        :raises RedisRuntimeError: if there is no such model or tensor, or they do not fit
        :raises RedisTimeoutError: if no runner has responded within ``SR_MODEL_TIMEOUT`` (60000) milliseconds
        """
        self._run_model(name, _names(inputs), _names(outputs))

    @api_call
    def run_model_multigpu(
        self, name: str, offset: int, first_gpu: int, num_gpus: int, inputs: Names = None, outputs: Names = None
    ) -> None:
        """Runs a model as ``run_model`` does, on any free runner."""
        given = _names(inputs), _names(outputs)
        _check_gpus(first_gpu, num_gpus)
        self._run_model(name, *given)

    @api_call
    def delete_model(self, name: str) -> None:
        """Deletes a model, if it exists."""
        self._delete_model(name)

    @api_call
    def delete_model_multigpu(self, name: str, first_gpu: int, num_gpus: int) -> None:
        """Deletes a model as ``delete_model`` does."""
        _check_gpus(first_gpu, num_gpus)
        self._delete_model(name)

    @api_call
    def model_exists(self, name: str) -> bool:
        """Returns whether the model exists."""
        return self._client.exists(_bytes_name(self._prefixes.model(name, reads=True)))

    @api_call
    def poll_model(self, name: str, poll_frequency_ms: int, num_tries: int) -> bool:
        """Waits until the model exists, for at most ``num_tries`` times ``poll_frequency_ms``.
        Returns whether the model exists.
        """
        key = _bytes_name(self._prefixes.model(name, reads=True))
        return poll_name(self._client, key, poll_frequency_ms, num_tries, lambda: self._client.exists(key))

    @api_call
    def set_model_chunk_size(self, chunk_size: int) -> None:
        """Does nothing. SmartRedis sends models in chunks, but this package passes them whole, in
        shared memory.
        """

    @api_call
    def get_ai_info(self, address: list[str], key: str, reset_stat: bool = False) -> list[dict[str, str]]:
        """Returns statistics of all runners of a model, for each address. The keys are ``key``,
        ``type``, ``backend``, ``device`` and ``tag``. ``duration`` is the microseconds of all runs,
        and ``samples`` their rows. ``calls`` is the number of requests, and ``errors`` the number
        of failed ones. Runners publish their counters once a second, and the counters end with the
        runners. With ``reset_stat``, later statistics begin now.

        :param key: the key of the model: its name, with the prefix if models have one
        :raises RedisRuntimeError: if there is no such model
        """
        for each in address:
            self._connection.check_address(each)
        try:
            with self._client.get_model(key) as lease:
                tag = str(lease.metadata.get("tag", ""))
        except tensorlend.NotFoundError as e:
            raise RedisRuntimeError(f"there is no model {key!r}", key=key) from e
        counted = {str(one["pid"]): _counted(one) for one in self._client.model_statistics(key)}
        before = self._before(key)
        if reset_stat:
            self._client.put(_reset_name(key), np.frombuffer(json.dumps(counted).encode(), np.uint8))
        # The counters of an ended runner no longer exist. A new runner with the same pid may have
        # counted less than the old one.
        since = [
            {word: number - before.get(pid, {}).get(word, 0) for word, number in one.items()} for pid, one in counted.items()
        ]
        sums = {word: str(sum(max(one[word], 0) for one in since)) for word in _counted({})}
        info = {"key": key, "type": "MODEL", "backend": "ONNX", "device": "CPU", "tag": tag, **sums}
        return [dict(info) for _ in address]

    def _before(self, key: str) -> dict[str, dict[str, int]]:
        """Returns the counters of a model's runners at the last reset."""
        try:
            with self._client.get(_reset_name(key)) as lease:
                found: dict[str, dict[str, int]] = json.loads(bytes(memoryview(lease)))
                return found
        except tensorlend.NotFoundError:
            return {}

    def _set_model(
        self, name: str, model: bytes, backend: str, batch: tuple[int, int, int], tag: str, names: list[str]
    ) -> None:
        kind, (size, least, milliseconds) = backend.upper(), batch
        if kind not in _BACKENDS:
            raise TypeError(f"backend is {backend!r}; it must be one of {', '.join(_BACKENDS)}")
        if not name:
            raise ValueError("the name of a model cannot be empty")
        if names and kind != "TF":
            raise ValueError("inputs and outputs are named for TF models only")
        if size == 0 and (least > 0 or milliseconds > 0):
            raise RedisRuntimeError("min_batch_size and min_batch_timeout mean nothing with a batch_size of 0")
        if milliseconds > 0 and least == 0:
            raise RedisRuntimeError("min_batch_timeout means nothing with a min_batch_size of 0")
        if kind != "ONNX":
            raise RedisNotImplementedError(f"backend {backend}: models run as ONNX files; export this one to ONNX")
        self._client.put_model(
            self._prefixes.model(name, reads=False),
            model,
            batch_max=max(size, 1),
            batch_min=min(least, max(size, 1)) or None,
            # With 0 ms, the runner runs the requests that have already arrived together. It does
            # not wait for more requests.
            batch_wait_ms=milliseconds,
            tag=tag,
        )

    def _delete_model(self, name: str) -> None:
        key = self._prefixes.model(name, reads=True)
        self._client.delete_model(key)
        self._client.delete(_reset_name(key))

    def _run_model(self, name: str, inputs: list[str], outputs: list[str]) -> None:
        key = self._prefixes.model(name, reads=True)
        seconds = self._connection.options.integer("SR_MODEL_TIMEOUT", _MODEL_TIMEOUT_MS) / 1000
        # Pass inputs by position, because programs for other backends do not know the names in the graph.
        given = {f"#{at}": self._prefixes.tensor(tensor, reads=True) for at, tensor in enumerate(inputs)}
        wanted = {f"#{at}": self._prefixes.tensor(tensor, reads=False) for at, tensor in enumerate(outputs)}
        try:
            self._model(key).run(given, wanted, timeout=seconds).release()
        except tensorlend.NotFoundError as e:
            raise RedisRuntimeError(f"there is no model {name!r}", key=key) from e

    def _model(self, key: str) -> tensorlend.Model:
        """Returns the connection to a runner of this model. Each thread of each process has one connection for each
        model.
        """
        local = self.__dict__.setdefault("_ways", threading.local())
        if getattr(local, "process", None) != os.getpid():
            local.process, local.ways = os.getpid(), {}
        ways: dict[str, tensorlend.Model] = local.ways
        if key not in ways:
            ways[key] = self._client.model(key)
        return ways[key]


def _bytes_name(key: str) -> str:
    return f"model/{key}/.onnx"


def _reset_name(key: str) -> str:
    return f"model/{key}/.smartredis"


def _counted(statistics: dict[str, Any]) -> dict[str, int]:
    """Returns the counts under the names of SmartRedis."""
    return {
        "duration": round(statistics.get("run_us_sum", 0)),
        "samples": statistics.get("rows", 0),
        "calls": statistics.get("requests", 0) + statistics.get("failures", 0),
        "errors": statistics.get("failures", 0),
    }


def _check_device(device: str) -> None:
    if not device.upper().startswith(("CPU", "GPU")):
        raise TypeError(f"device is {device!r}; it must begin with CPU or GPU")


def _check_file(file: str) -> None:
    if not os.path.isfile(file):
        raise FileNotFoundError(os.path.abspath(file))


def _check_gpus(first_gpu: int, num_gpus: int) -> None:
    if first_gpu < 0:
        raise ValueError(f"first_gpu is {first_gpu}; it must be at least 0")
    if num_gpus < 1:
        raise ValueError(f"num_gpus is {num_gpus}; it must be at least 1")


def _names(names: Names) -> list[str]:
    given: str | list[str] = init_default([], names, (list, str))
    return [given] if isinstance(given, str) else given
