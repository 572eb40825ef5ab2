"""An engine of vLLM on the CPU in a process of its own, with a tiny model of random weights: each line of its input is a command."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
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
#: Tokens of a block: the least that attention on the CPU has.
BLOCK = 32


def model(folder: pathlib.Path, **changes: Any) -> pathlib.Path:
    """Writes the model: its configuration, and weights by which each token depends on all before it."""
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
            tensors[f"model.layers.{layer}.{name}.weight"] = matrix(*shape, 4 if name.startswith("self_attn") else 1)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = np.ones(width, config["torch_dtype"])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def environment() -> dict[str, str]:
    """Returns the variables of an engine's process."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }


def engine(path: str, socket: str | None) -> Any:
    """Starts an engine; without a socket it has no connector."""
    import vllm
    from vllm.config import KVTransferConfig

    transfer = None
    if socket is not None:
        transfer = KVTransferConfig(
            kv_connector="TensorlendConnector",
            kv_connector_module_path="tensorlend.vllm",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"address": socket, "bytes_max": "1 GiB"},
        )
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
        kv_transfer_config=transfer,
    )


def prompt(seed: int, length: int) -> list[int]:
    import random

    draw = random.Random(seed)
    return [draw.randrange(3, CONFIG["vocab_size"]) for _ in range(length)]


def main() -> None:
    """Answers each command by one line of JSON."""
    # The libraries print to the standard output, too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    path, socket = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    llm = engine(path, socket)
    import vllm

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        prompts, count = json.loads(line)
        options = vllm.SamplingParams(max_tokens=count, temperature=0, detokenize=False, ignore_eos=True)
        begun, begun_processor = time.perf_counter(), time.process_time()
        done = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], options, use_tqdm=False)
        seconds, processor_s = time.perf_counter() - begun, time.process_time() - begun_processor
        tokens = [list(one.outputs[0].token_ids) for one in done]
        answer = {"tokens": tokens, "seconds": seconds, "processor_s": processor_s, "cached": [one.num_cached_tokens for one in done]}
        print(json.dumps(answer), file=answers, flush=True)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
