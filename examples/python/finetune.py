"""Trains a classifier with transformers' Trainer on a list of dicts that all workers share.

Two lines differ from a program without tensorlend: `share` lends the rows, and `install` lends the batches. Prints the loss
before and after the training. Needs torch, transformers, accelerate and msgpack.
"""

import tempfile

import torch
import transformers

import tensorlend
import tensorlend.accelerate


class Rows(torch.utils.data.Dataset):
    """Points as tensors, with the label of their side."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return {"point": torch.tensor(row["point"]), "labels": torch.tensor(row["label"])}


class Classifier(torch.nn.Module):
    """A line that divides points."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, point, labels):
        logits = self.layer(point)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def made(count):
    """Yields points of a grid, each with a name and the side on which it is."""
    for number in range(count):
        point = [number % 40 / 20 - 1, number // 40 % 40 / 20 - 1]
        yield {"name": f"point {number}", "point": point, "label": int(point[0] > point[1])}


def main() -> None:
    torch.manual_seed(0)
    rows = tensorlend.share(made(1600))  # was: list(made(1600))
    tensorlend.accelerate.install()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, use_cpu=True, num_train_epochs=2, per_device_train_batch_size=32, learning_rate=0.1,
            dataloader_num_workers=2, dataloader_persistent_workers=True, report_to=[], save_strategy="no", logging_strategy="no",
            disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(Classifier(), arguments, train_dataset=Rows(rows), eval_dataset=Rows(rows))
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        print(f"loss {before:.3f} before, {trainer.evaluate()['eval_loss']:.3f} after")


if __name__ == "__main__":
    main()
