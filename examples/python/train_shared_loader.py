"""Trains a small network on handwritten digits. Worker processes make the batches in shared memory, without a copy.

The digits are in examples/data/digits.npy: 8 x 8 pixels from 0 to 16 each. Prints the loss of each
epoch, and how many of the test digits the network classifies correctly. Needs torch.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, Subset

from tensorlend.torch import SharedLoader

DATA = Path(__file__).parent.parent / "data"


class Digits(Dataset):
    """Pairs of a picture, shape (64,) and type float32 with values from 0 to 1, and a label from 0 to 9.

    If `shifted`, each picture is shifted at random by up to one pixel.
    """

    def __init__(self, shifted: bool) -> None:
        self.pictures = torch.from_numpy(np.load(DATA / "digits.npy").reshape(-1, 8, 8).astype(np.float32) / 16)
        self.labels = torch.from_numpy(np.load(DATA / "digits_labels.npy").astype(np.int64))
        self.shifted = shifted

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        picture = self.pictures[index]
        if self.shifted:
            picture = picture.roll(tuple(torch.randint(-1, 2, (2,)).tolist()), (0, 1))
        return picture.flatten(), self.labels[index]


def main() -> None:
    torch.manual_seed(0)
    order = torch.randperm(len(Digits(False))).tolist()
    train, test = Subset(Digits(True), order[:1500]), Subset(Digits(False), order[1500:])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    with SharedLoader(train, 64, workers=2, shuffle=True, persistent_workers=True) as loader:
        for epoch in range(10):
            losses = []
            for pictures, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(pictures), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")
    with torch.no_grad():
        known = sum(int((model(pictures).argmax(1) == labels).sum()) for pictures, labels in SharedLoader(test, 99, workers=1))
    print(f"knows {known} of {len(test)} digits")


if __name__ == "__main__":
    main()
