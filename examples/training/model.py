"""The study's network in torch, and its training step."""

from __future__ import annotations

import math

import torch
from torch import nn

INITS = ("normal", "kaiming", "xavier")


class Trainer:
    """A network with one hidden layer of ReLU units, trained by stochastic gradient descent.

    The same seed gives the same initial weights. For MNIST, the layers have 784, 128 and 10 units.
    """

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
        """Trains one step and appends the loss before the step to `losses`."""
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(features), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.losses.append(loss.item())

    def accuracy(self, features: torch.Tensor, labels: torch.Tensor) -> float:
        """Returns the fraction of the samples that the network classifies correctly."""
        with torch.no_grad():
            return float((self.model(features).argmax(1) == labels).double().mean())


def _deviation(init: str, inputs: int, outputs: int) -> float:
    """Returns the standard deviation of a layer's initial weights, as src/network.rs does, which cites the sources."""
    return {"normal": 1.0, "kaiming": math.sqrt(2 / inputs), "xavier": math.sqrt(2 / (inputs + outputs))}[init]
