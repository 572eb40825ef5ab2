"""Files of weights as tensors of torch, and models that consist of them."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import safetensors.torch
from waiting import LONG

from tensorlend.torch import load_file, load_state_dict


def small():
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 8))


def test_tensors_are_those_of_safetensors(client, tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = {"a": torch.arange(7, dtype=torch.bfloat16), "b": torch.randn(3, 4), "c": torch.tensor(5), "d": torch.zeros(0, 3)}
    tensors["e"] = torch.randn(5).to(torch.float8_e4m3fn)
    safetensors.torch.save_file(tensors, path)
    found = load_file(path, client=client)
    for name, expected in safetensors.torch.load_file(path).items():
        assert found[name].dtype == expected.dtype and found[name].shape == expected.shape
        assert torch.equal(found[name].view(torch.uint8), expected.view(torch.uint8)) if expected.ndim else found[name] == expected
    # No tensor shares its storage with another one, as programs that save tensors need it.
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values() if tensor.numel()}) == 4
    safetensors.torch.save_file(found, tmp_path / "again.safetensors")


def test_a_model_on_the_meta_device_takes_the_lent_memory(client, tmp_path):
    path = tmp_path / "model.safetensors"
    usual = small().eval()
    safetensors.torch.save_file(usual.state_dict(), path)
    models = []
    for _ in range(2):
        with torch.device("meta"):
            model = small()
        assert not any(load_state_dict(model, path, client=client))
        models.append(model.eval())
    x = torch.randn(2, 64)
    assert torch.equal(models[0](x), usual(x))
    # In-place writes are one process's own: the other model does not see them.
    with torch.no_grad():
        models[0][0].weight.zero_()
    assert torch.equal(models[1](x), usual(x))
    models[1].train()
    torch.nn.functional.mse_loss(models[1](x), torch.zeros(2, 8)).backward()
    torch.optim.SGD(models[1].parameters(), 0.1).step()
    assert torch.equal(load_file(path, client=client)["0.weight"], usual[0].weight)
    with pytest.raises(RuntimeError, match="Missing key"):
        load_state_dict(torch.nn.Linear(2, 2), path, client=client)


SERVER = """
import sys
import torch
import tensorlend
from tensorlend.torch import load_file
path, config = sys.argv[2:]
with tensorlend.connect(sys.argv[1]) as client:
    import transformers
    config = transformers.AutoConfig.from_pretrained(config)
    model = transformers.GPT2LMHeadModel.from_pretrained(None, config=config, state_dict=load_file(path, client=client))
    print(float(model(torch.arange(8)[None]).logits.detach().sum()), flush=True)
    from test_weights import pss_bytes
    input()
    print(pss_bytes(model.get_input_embeddings().weight.detach().numpy()), flush=True)
    input()
"""


def test_a_model_of_transformers_shares_its_pages(broker, client, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(n_embd=256, n_layer=2, n_head=4, vocab_size=16_000, n_positions=64, bos_token_id=0, eos_token_id=1)
    usual = transformers.GPT2LMHeadModel(config).eval()
    usual.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SERVER, broker.address, path, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path]), "HF_HUB_OFFLINE": "1"},
        )
        for _ in range(3)
    ]  # fmt: skip
    expected = float(usual(torch.arange(8)[None]).logits.detach().sum())
    for process in processes:
        assert float(process.stdout.readline()) == pytest.approx(expected, rel=1e-3)
    nbytes = usual.get_input_embeddings().weight.nbytes
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
        # Others' tensors are in the same mapping.
        assert int(process.stdout.readline()) < path.stat().st_size / 3 * 1.2 < nbytes
    for process in processes:
        process.communicate("\n", timeout=LONG)
        assert process.returncode == 0
