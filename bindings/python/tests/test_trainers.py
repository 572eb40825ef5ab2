"""accelerate, transformers' Trainer and Lightning: unmodified, or with one more line, against the same program without it."""

import importlib.util
import os
import re

import pytest
from programs import succeeds

torch = pytest.importorskip("torch", reason="torch is not installed")


def needs(*frameworks):
    missing = [name for name in frameworks if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


HEAD = """
import sys
import warnings

warnings.filterwarnings("ignore")
import torch

torch.set_num_threads(1)


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        pixels = torch.full((1 << 14,), float(index))
        return {"pixels": pixels, "labels": torch.tensor(index % 2)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(1 << 14, 2)

    def forward(self, pixels, labels):
        pixels /= 40  # in place, as programs do that own their batches
        logits = self.layer(pixels)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def in_lent_memory(tensor):
    at = tensor.data_ptr()
    for line in open("/proc/self/maps"):
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= at < last:
            return "tensorlend" in line
    return False
"""

ACCELERATE = """
import os

import accelerate


def main():
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    torch.manual_seed(3)
    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
    assert isinstance(loader, torch.utils.data.DataLoader) and len(loader) == 10 // accelerator.num_processes
    lent, steps, said = set(), 0, []
    for _ in range(2):
        for batch in loader:
            # With several processes, accelerate copies each batch from "cpu" to "cpu:0".
            shared = type(loader.base_dataloader).__name__ == "SharedLoader"
            lent.add(shared if accelerator.num_processes > 1 else in_lent_memory(batch["pixels"]))
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                steps += accelerator.sync_gradients
                optimizer.step()
                optimizer.zero_grad()
            said.append(f"{accelerator.process_index} {batch['pixels'][:, 0].mul(40).round().int().tolist()} {loss.item():.6f}\\n")
    # By one write: the processes share the pipe.
    os.write(1, "".join([*said, f"{accelerator.process_index} steps {steps}\\n"]).encode())
    print("lent", sorted(lent), file=sys.stderr)


if __name__ == "__main__":
    main()
"""

SKIPPING = """
import accelerate

if __name__ == "__main__":
    accelerator = accelerate.Accelerator(cpu=True)
    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2)
    loader = accelerator.prepare(loader)
    rest = list(accelerator.skip_first_batches(loader, 7))
    print([batch["pixels"][:, 0].tolist() for batch in rest])
    print("lent", sorted({in_lent_memory(batch["pixels"]) for batch in rest}), file=sys.stderr)
"""

TRAINER = """
import logging
import tempfile
import transformers


class Watch(transformers.TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        print({name: round(value, 6) for name, value in sorted(logs.items()) if "loss" in name or name == "epoch"})


def main():
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, use_cpu=True, per_device_train_batch_size=4, per_device_eval_batch_size=4, num_train_epochs=2,
            dataloader_num_workers=2, dataloader_persistent_workers=True, logging_steps=1, eval_strategy="epoch", save_strategy="no",
            report_to=[], disable_tqdm=True, seed=5, remove_unused_columns=False,
        )
        model = Model()
        trainer = transformers.Trainer(model, arguments, train_dataset=Squares(), eval_dataset=Squares(), callbacks=[Watch])
        trainer.remove_callback(transformers.PrinterCallback)
        seen = set()
        forward = model.forward

        def watched(pixels, labels):
            seen.add(in_lent_memory(pixels))
            return forward(pixels, labels)

        model.forward = watched
        trainer.train()
        print(trainer.predict(Squares()).predictions.sum(0).round(3).tolist())
        print("lent", sorted(seen), file=sys.stderr)


if __name__ == "__main__":
    main()
"""

LIGHTNING = """
import logging

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def training_step(self, batch, _):
        lent.add(in_lent_memory(batch["pixels"]))
        loss = self.model(**batch)["loss"]
        print(f"{loss.item():.6f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


lent = set()
if __name__ == "__main__":
    lightning.seed_everything(7, verbose=False)
    loader = Loader(Squares(), batch_size=4, shuffle=True, num_workers=2)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader)
    print("lent", sorted(lent), file=sys.stderr)
"""
USUAL = "Loader = torch.utils.data.DataLoader\n"
SHARED = "from tensorlend.torch import SharedLoader\nLoader = lambda *args, **options: SharedLoader(*args, **options, mode='cow')\n"
INSTALL = "import tensorlend.accelerate\n\ntensorlend.accelerate.install()\n"

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("TENSORLEND_SOCKET", "TENSORLEND_RUN"))}


def result(tmp_path, *parts, before=()):
    """What a program made of these parts prints, and whether its batches were in lent memory."""
    path = tmp_path / "program.py"
    path.write_text("".join(parts))
    environment = {**ENVIRONMENT, "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = succeeds(*before, path, env=environment)
    lent = re.findall(r"^lent \[(.*)\]$", done.stderr, re.MULTILINE)
    assert lent and len(set(lent)) == 1, done.stderr
    return sorted(done.stdout.splitlines()), lent[0], done.stderr


@needs("accelerate")
@pytest.mark.parametrize("source", [ACCELERATE, SKIPPING])
def test_accelerate(tmp_path, source):
    usual, lent, _ = result(tmp_path, HEAD, source)
    assert lent == "False" and usual
    changed, lent, _ = result(tmp_path, HEAD, INSTALL, source)
    assert (changed, lent) == (usual, "True")


@needs("accelerate")
def test_accelerate_in_two_processes(tmp_path):
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    usual, lent, _ = result(tmp_path, HEAD, ACCELERATE, before=launch)
    assert lent == "False" and {line[0] for line in usual} == {"0", "1"}
    changed, lent, _ = result(tmp_path, HEAD, INSTALL, ACCELERATE, before=launch)
    assert (changed, lent) == (usual, "True")


@needs("accelerate", "transformers")
def test_transformers_trainer(tmp_path):
    usual, lent, _ = result(tmp_path, HEAD, TRAINER)
    assert lent == "False" and len(usual) > 20
    changed, lent, _ = result(tmp_path, HEAD, INSTALL, TRAINER)
    assert (changed, lent) == (usual, "True")


@needs("lightning")
def test_lightning_with_a_shared_loader(tmp_path):
    usual, lent, _ = result(tmp_path, HEAD, USUAL, LIGHTNING)
    assert lent == "False" and len(usual) == 20
    changed, lent, _ = result(tmp_path, HEAD, SHARED, LIGHTNING)
    assert (changed, lent) == (usual, "True")


@pytest.mark.parametrize(
    ("source", "batches"),
    [
        pytest.param(ACCELERATE, 20, marks=needs("accelerate"), id="accelerate"),
        pytest.param(TRAINER, 50, marks=needs("accelerate", "transformers"), id="transformers"),
        pytest.param(USUAL + LIGHTNING, 20, marks=needs("lightning"), id="lightning"),
    ],
)
def test_unmodified(tmp_path, source, batches):
    """Under tensorlend.run, the workers of torch's own loader lend the batches."""
    usual, _, _ = result(tmp_path, HEAD, source)
    changed, lent, said = result(tmp_path, HEAD, source, before=("-m", "tensorlend.run"))
    assert (changed, lent) == (usual, "True")
    assert f"tensorlend: lent {batches} arrays and tensors" in said


@needs("accelerate")
def test_what_stays_accelerates(client):
    import accelerate

    import tensorlend.accelerate

    def base(**options):
        loader = torch.utils.data.DataLoader(range(8), batch_size=2, **options)
        return type(accelerate.Accelerator(cpu=True).prepare(loader).base_dataloader).__name__

    tensorlend.accelerate.install(client=client)
    try:
        assert (base(num_workers=1), base()) == ("SharedLoader", "DataLoader")
        with pytest.raises(ValueError, match='give "read" or "cow"'):
            tensorlend.accelerate.install(client=client, mode="write")
    finally:
        tensorlend.accelerate.uninstall()
    assert base(num_workers=1) == "DataLoader"
