"""The network of the study, in torch, and what one step of it takes."""

from __future__ import annotations

import math

import torch
from torch import nn

INITS = ("normal", "kaiming", "xavier")


class Trainer:
    """784-128-10 or whatever the data ask for, taught by plain gradient descent. The same seed gives the same weights."""

    def __init__(
        self, inputs: int, classes: int, hidden: int = 128, rate: float = 0.1, init: str = "kaiming", seed: int = 1
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, classes)
        self.model = nn.Sequential(first, nn.ReLU(), second)
        with torch.no_grad():
            for layer in (first, second):
                layer.weight.normal_(0, _deviation(init, layer.in_features, layer.out_features), generator=generator)
                layer.bias.zero_()
        self.optimizer = torch.optim.SGD(self.model.parameters(), rate)
        self.losses: list[float] = []

    def learn(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        """One step; the loss before it is remembered."""
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(features), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.losses.append(loss.item())

    def accuracy(self, features: torch.Tensor, labels: torch.Tensor) -> float:
        """Part of the samples that it knows."""
        with torch.no_grad():
            return float((self.model(features).argmax(1) == labels).double().mean())


def _deviation(init: str, inputs: int, outputs: int) -> float:
    """As in src/network.rs, where it says whose these are."""
    return {"normal": 1.0, "kaiming": math.sqrt(2 / inputs), "xavier": math.sqrt(2 / (inputs + outputs))}[init]
