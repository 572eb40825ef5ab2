"""Engines of vLLM on the CPU in processes of their own, with a tiny model of random weights."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pathlib
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from multiprocessing import forkserver
from typing import Any

#: A model of random weights.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: Tokens of a block: the minimum for attention on the CPU.
BLOCK = 32


def model(folder: pathlib.Path, gain: float = 4, **changes: Any) -> pathlib.Path:
    """Writes the model: its configuration, and weights by which each token depends on all before it.

    The matrices of the attention are scaled by `gain`. The larger it is, the fewer tokens determine the next one, and the more
    the layers amplify errors of rounding.
    """
    import numpy as np
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    config = {**CONFIG, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    draw, width, inner = np.random.default_rng(7), config["hidden_size"], config["intermediate_size"]
    heads, own = config["num_key_value_heads"] * config["head_dim"], config["num_attention_heads"] * config["head_dim"]

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Any:
        return (draw.normal(0, scale * columns**-0.5, (rows, columns))).astype(config["torch_dtype"])

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], width, 16), "lm_head.weight": matrix(config["vocab_size"], width)}
    tensors["model.norm.weight"] = np.ones(width, config["torch_dtype"])
    for layer in range(config["num_hidden_layers"]):
        shapes = {"self_attn.q_proj": (own, width), "self_attn.k_proj": (heads, width), "self_attn.v_proj": (heads, width)}
        shapes |= {"self_attn.o_proj": (width, own), "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width)}
        shapes["mlp.down_proj"] = (width, inner)
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = matrix(*shape, gain if name.startswith("self_attn") else 1)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = np.ones(width, config["torch_dtype"])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def environment() -> dict[str, str]:
    """Returns the variables of an engine's process."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        # One thread each. Threads of several engines on the same cores would wait for each other.
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }


def connector(socket: object, bytes_max: str = "1 GiB") -> dict[str, Any]:
    """Returns the fields of vLLM's `KVTransferConfig` with which an engine uses tensorlend."""
    return {
        "kv_connector": "TensorlendConnector",
        "kv_connector_module_path": "tensorlend.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"address": str(socket), "bytes_max": bytes_max},
    }


def engine(path: str, transfer: dict[str, Any] | None, options: dict[str, Any]) -> Any:
    """Starts an engine. Without the fields of a `KVTransferConfig` it has no connector. `options` are further ones of `vllm.LLM`."""
    import vllm
    from vllm.config import KVTransferConfig

    from tensorlend._vllm.loader import register

    # An installed wheel has an entry point for this.
    register()
    return vllm.LLM(
        path,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        block_size=BLOCK,
        max_model_len=4096,
        max_num_seqs=4,
        max_num_batched_tokens=1024,
        disable_hybrid_kv_cache_manager=True,
        kv_transfer_config=None if transfer is None else KVTransferConfig(**transfer),
        **options,
    )


@contextlib.contextmanager
def ending(engines: Iterable[Process], log: pathlib.Path) -> Iterator[None]:
    """Kills engines at the end. After an error, it first prints the end of their log."""
    try:
        yield
    except BaseException:
        print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
        raise
    finally:
        for engine in engines:
            engine.kill()


class Process:
    """An engine in a process of its own. `log` is a file for its output, and `options` are of `vllm.LLM`."""

    def __init__(
        self,
        model: pathlib.Path,
        transfer: dict[str, Any] | None,
        log: pathlib.Path | None = None,
        options: dict[str, Any] | None = None,
        **variables: str,
    ) -> None:
        context = _context()
        self._connection, theirs = context.Pipe()
        arguments = (theirs, str(model), transfer, log, options or {}, variables)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def ready(self) -> Process:
        """Waits until the engine has started."""
        assert self._connection.recv() == "ready"
        return self

    def ask(self, *prompts: list[int], count: int = 16) -> dict[str, Any]:
        """Generates tokens. Returns them for each prompt, with times and the number of tokens from caches."""
        self.send(*prompts, count=count)
        return self.receive()

    def send(self, *prompts: list[int], count: int = 16) -> None:
        """Sends prompts, and does not wait for the tokens."""
        self._connection.send((prompts, count))

    def receive(self, timeout: float | None = None) -> dict[str, Any]:
        """Waits for the answer to the oldest `send`."""
        if not self._connection.poll(timeout):
            raise TimeoutError
        answer: dict[str, Any] = self._connection.recv()
        return answer

    def kill(self) -> None:
        """Kills the engine, if it still runs."""
        self.process.kill()
        self.process.join()
        self._connection.close()


@cache
def _context() -> Any:
    """Returns the context of a server that has imported vLLM, and forks the engines. An import takes 9 s of processor time."""
    context = multiprocessing.get_context("forkserver")
    modules = ("vllm", "vllm.v1.engine.llm_engine", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.llama", "tensorlend.vllm")
    context.set_forkserver_preload(list(modules))
    before = dict(os.environ)
    os.environ.update(environment())
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return context


def _serve(
    connection: Any, model: str, transfer: dict[str, Any] | None, log: pathlib.Path | None, options: dict[str, Any], variables: dict[str, str]
) -> None:
    """Answers prompts until the other end of the connection is closed."""
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
    os.environ.update(variables)
    llm = engine(model, transfer, options)
    import vllm

    connection.send("ready")
    while True:
        try:
            prompts, count = connection.recv()
        except EOFError:
            break
        options = vllm.SamplingParams(max_tokens=count, temperature=0, detokenize=False, ignore_eos=True)
        begun, begun_processor = time.perf_counter(), time.process_time()
        done = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], options, use_tqdm=False)
        seconds, processor_s = time.perf_counter() - begun, time.process_time() - begun_processor
        tokens = [list(one.outputs[0].token_ids) for one in done]
        answer = {"tokens": tokens, "seconds": seconds, "processor_s": processor_s, "cached": [one.num_cached_tokens for one in done]}
        connection.send(answer)
    llm.llm_engine.engine_core.shutdown()


def prompt(seed: int, length: int) -> list[int]:
    import random

    draw = random.Random(seed)
    return [draw.randrange(3, CONFIG["vocab_size"]) for _ in range(length)]
