"""Models and scripts: their arguments are checked as programs expect it, but nothing runs them yet."""

import inspect
import os
from collections.abc import Callable
from typing import Any, NoReturn

from .calls import Calls
from .error import RedisNotImplementedError, RedisRuntimeError
from .util import exception_handler, init_default, typecheck

__all__ = ["ModelCalls"]

_BACKENDS = ("TF", "TFLITE", "TORCH", "ONNX")

Names = str | list[str] | None


def _not_here_yet() -> NoReturn:
    raise RedisNotImplementedError("models and scripts are not here yet: tensorlend has no model runner so far")


class ModelCalls(Calls):
    """The client's calls on models and scripts. Each raises what its arguments deserve, and otherwise
    :class:`RedisNotImplementedError`."""

    @exception_handler
    def set_function(self, name: str, function: Callable[..., Any], device: str = "CPU") -> None:
        """Stores a function as a script. Not here yet."""
        typecheck(name, "name", str)
        typecheck(device, "device", str)
        _check_function(function)
        _check_device(device)
        inspect.getsource(function)
        _not_here_yet()

    @exception_handler
    def set_function_multigpu(self, name: str, function: Callable[..., Any], first_gpu: int, num_gpus: int) -> None:
        """Stores a function as a script for several GPUs. Not here yet."""
        typecheck(name, "name", str)
        _check_gpus(first_gpu, num_gpus, lambda: _check_function(function))
        inspect.getsource(function)
        _not_here_yet()

    @exception_handler
    def set_script(self, name: str, script: str, device: str = "CPU") -> None:
        """Stores a script. Not here yet."""
        typecheck(name, "name", str)
        typecheck(script, "script", str)
        typecheck(device, "device", str)
        _check_device(device)
        _not_here_yet()

    @exception_handler
    def set_script_multigpu(self, name: str, script: str, first_gpu: int, num_gpus: int) -> None:
        """Stores a script for several GPUs. Not here yet."""
        typecheck(name, "name", str)
        typecheck(script, "script", str)
        _check_gpus(first_gpu, num_gpus)
        _not_here_yet()

    @exception_handler
    def set_script_from_file(self, name: str, file: str, device: str = "CPU") -> None:
        """Stores a file as a script. Not here yet.

        :raises FileNotFoundError: if there is no such file
        """
        typecheck(name, "name", str)
        typecheck(file, "file", str)
        typecheck(device, "device", str)
        _check_device(device)
        _check_file(file)
        _not_here_yet()

    @exception_handler
    def set_script_from_file_multigpu(self, name: str, file: str, first_gpu: int, num_gpus: int) -> None:
        """Stores a file as a script for several GPUs. Not here yet.

        :raises FileNotFoundError: if there is no such file
        """
        typecheck(name, "name", str)
        typecheck(file, "file", str)
        _check_gpus(first_gpu, num_gpus, lambda: _check_file(file))
        _not_here_yet()

    @exception_handler
    def get_script(self, name: str) -> str:
        """A script's text. Not here yet."""
        typecheck(name, "name", str)
        _not_here_yet()

    @exception_handler
    def run_script(self, name: str, fn_name: str, inputs: Names, outputs: Names) -> None:
        """Runs a function of a script on tensors. Not here yet."""
        typecheck(name, "name", str)
        typecheck(fn_name, "fn_name", str)
        _names(inputs)
        _names(outputs)
        _not_here_yet()

    @exception_handler
    def run_script_multigpu(
        self, name: str, fn_name: str, inputs: Names, outputs: Names, offset: int, first_gpu: int, num_gpus: int
    ) -> None:
        """Runs a function of a script on one of several GPUs. Not here yet."""
        typecheck(name, "name", str)
        typecheck(fn_name, "fn_name", str)
        typecheck(offset, "offset", int)
        _names(inputs)
        _names(outputs)
        _check_gpus(first_gpu, num_gpus)
        _not_here_yet()

    @exception_handler
    def delete_script(self, name: str) -> None:
        """Deletes a script. Not here yet."""
        typecheck(name, "name", str)
        _not_here_yet()

    @exception_handler
    def delete_script_multigpu(self, name: str, first_gpu: int, num_gpus: int) -> None:
        """Deletes a script from several GPUs. Not here yet."""
        typecheck(name, "name", str)
        _check_gpus(first_gpu, num_gpus)
        _not_here_yet()

    @exception_handler
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
        """Stores a model. Not here yet."""
        typecheck(name, "name", str)
        typecheck(device, "device", str)
        _check_model(backend, batch_size, min_batch_size, min_batch_timeout, tag)
        _check_device(device)
        _check_use(name, backend, (batch_size, min_batch_size, min_batch_timeout), inputs, outputs)
        _not_here_yet()

    @exception_handler
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
        """Stores a model for several GPUs. Not here yet."""
        typecheck(name, "name", str)
        _check_model(backend, batch_size, min_batch_size, min_batch_timeout, tag)
        _check_gpus(first_gpu, num_gpus)
        _check_use(name, backend, (batch_size, min_batch_size, min_batch_timeout), inputs, outputs)
        _not_here_yet()

    @exception_handler
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
        """Stores a file as a model. Not here yet.

        :raises FileNotFoundError: if there is no such file
        """
        typecheck(name, "name", str)
        typecheck(model_file, "model_file", str)
        typecheck(device, "device", str)
        _check_model(backend, batch_size, min_batch_size, min_batch_timeout, tag)
        _check_device(device)
        _check_file(model_file)
        _check_use(name, backend, (batch_size, min_batch_size, min_batch_timeout), inputs, outputs)
        _not_here_yet()

    @exception_handler
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
        """Stores a file as a model for several GPUs. Not here yet.

        :raises FileNotFoundError: if there is no such file
        """
        typecheck(name, "name", str)
        typecheck(model_file, "model_file", str)
        _check_model(backend, batch_size, min_batch_size, min_batch_timeout, tag)
        _check_gpus(first_gpu, num_gpus, lambda: _check_file(model_file))
        _check_use(name, backend, (batch_size, min_batch_size, min_batch_timeout), inputs, outputs)
        _not_here_yet()

    @exception_handler
    def get_model(self, name: str) -> bytes:
        """A model's bytes. Not here yet."""
        typecheck(name, "name", str)
        _not_here_yet()

    @exception_handler
    def run_model(self, name: str, inputs: Names = None, outputs: Names = None) -> None:
        """Runs a model on tensors. Not here yet."""
        typecheck(name, "name", str)
        _names(inputs)
        _names(outputs)
        _not_here_yet()

    @exception_handler
    def run_model_multigpu(
        self, name: str, offset: int, first_gpu: int, num_gpus: int, inputs: Names = None, outputs: Names = None
    ) -> None:
        """Runs a model on one of several GPUs. Not here yet."""
        typecheck(name, "name", str)
        typecheck(offset, "offset", int)
        _names(inputs)
        _names(outputs)
        _check_gpus(first_gpu, num_gpus)
        _not_here_yet()

    @exception_handler
    def delete_model(self, name: str) -> None:
        """Deletes a model. Not here yet."""
        typecheck(name, "name", str)
        _not_here_yet()

    @exception_handler
    def delete_model_multigpu(self, name: str, first_gpu: int, num_gpus: int) -> None:
        """Deletes a model from several GPUs. Not here yet."""
        typecheck(name, "name", str)
        _check_gpus(first_gpu, num_gpus)
        _not_here_yet()

    @exception_handler
    def model_exists(self, name: str) -> bool:
        """Whether there is such a model or script: there is none yet."""
        typecheck(name, "name", str)
        return False

    @exception_handler
    def poll_model(self, name: str, poll_frequency_ms: int, num_tries: int) -> bool:
        """Waits for a model. Not here yet: it would wait in vain."""
        typecheck(name, "name", str)
        typecheck(poll_frequency_ms, "poll_frequency_ms", int)
        typecheck(num_tries, "num_tries", int)
        _not_here_yet()

    @exception_handler
    def set_model_chunk_size(self, chunk_size: int) -> None:
        """In pieces of how many bytes models travel. Not here yet."""
        typecheck(chunk_size, "chunk_size", int)
        _not_here_yet()

    @exception_handler
    def get_ai_info(self, address: list[str], key: str, reset_stat: bool = False) -> list[dict[str, str]]:
        """Statistics of a model. Not here yet."""
        typecheck(address, "address", list)
        typecheck(key, "key", str)
        typecheck(reset_stat, "reset_stat", bool)
        for each in address:
            self._connection.check_address(each)
        _not_here_yet()


def _check_function(function: object) -> None:
    if not callable(function):
        raise TypeError(f"function is a {type(function).__name__}; it must be callable")


def _check_device(device: str) -> None:
    if not device.upper().startswith(("CPU", "GPU")):
        raise TypeError(f"device is {device!r}; it must begin with CPU or GPU")


def _check_file(file: str) -> None:
    if not os.path.isfile(file):
        raise FileNotFoundError(os.path.abspath(file))


def _check_gpus(first_gpu: object, num_gpus: object, between: Callable[[], None] = lambda: None) -> None:
    """Types come before the other checks, numbers after them."""
    typecheck(first_gpu, "first_gpu", int)
    typecheck(num_gpus, "num_gpus", int)
    between()
    assert isinstance(first_gpu, int) and isinstance(num_gpus, int)
    if first_gpu < 0:
        raise ValueError(f"first_gpu is {first_gpu}; it must be at least 0")
    if num_gpus < 1:
        raise ValueError(f"num_gpus is {num_gpus}; it must be at least 1")


def _check_model(backend: str, batch_size: int, min_batch_size: int, min_batch_timeout: int, tag: str) -> None:
    typecheck(backend, "backend", str)
    typecheck(batch_size, "batch_size", int)
    typecheck(min_batch_size, "min_batch_size", int)
    typecheck(min_batch_timeout, "min_batch_timeout", int)
    typecheck(tag, "tag", str)
    if backend.upper() not in _BACKENDS:
        raise TypeError(f"backend is {backend!r}; it must be one of {', '.join(_BACKENDS)}")


def _check_use(name: str, backend: str, batch: tuple[int, int, int], inputs: Names, outputs: Names) -> None:
    given = _names(inputs) + _names(outputs)
    if not name:
        raise ValueError("the name of a model cannot be empty")
    if given and backend.upper() != "TF":
        raise ValueError("inputs and outputs are named for TF models only")
    size, least, timeout = batch
    if size == 0 and (least > 0 or timeout > 0):
        raise RedisRuntimeError("min_batch_size and min_batch_timeout mean nothing with a batch_size of 0")
    if timeout > 0 and least == 0:
        raise RedisRuntimeError("min_batch_timeout means nothing with a min_batch_size of 0")


def _names(names: Names) -> list[str]:
    given: str | list[str] = init_default([], names, (list, str))
    return [given] if isinstance(given, str) else given
