"""Trains the study's network in torch on data that a producer publishes, without copying them.

    training-producer --mnist FOLDER && python examples/training/train.py --epochs 3

Needs torch. `--loader` takes a part of the name of a loader in loaders.py. With `--hold`, the program keeps all
batches until its standard input ends.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import loaders
import torch
from model import INITS, Trainer

import tensorlend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--socket", help="the broker's; by default the one that clients find by themselves")
    parser.add_argument("--set", default="mnist", help="iris, digits or mnist")
    parser.add_argument("--loader", default="batches by name, 16 at once")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--init", choices=INITS, default="kaiming")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print everything, as JSON")
    parser.add_argument("--hold", action="store_true", help="keep all batches until standard input ends")
    given = parser.parse_args()
    torch.set_num_threads(1)
    client = tensorlend.connect(given.socket, label="trainer")
    name = f"{given.set}/train"
    client.wait_for(name, 30)
    wanted = full_name(given.loader)
    # Loaders that read the samples from lent memory need no copy of them.
    lent = wanted in (loaders.LENT, loaders.LENT_1, loaders.GOT, loaders.HELD, loaders.SHARED_LENT)
    features, labels = loaders.show(client.get_dataset(name)) if lent else loaders.owned(client, name)
    loader = loaders.by_name(client, name, features, labels, given.batch)[wanted]()
    trainer = Trainer(features.shape[1], 3 if given.set == "iris" else 10, given.hidden, given.rate, given.init, given.seed)
    seconds, held = [], []
    for epoch in range(given.epochs):
        began = time.perf_counter()
        for batch in loader:
            trainer.learn(*batch)
            if given.hold:
                held.append(batch)
        seconds.append(time.perf_counter() - began)
        if not given.json:
            part = trainer.losses[-(len(trainer.losses) // (epoch + 1)) :]
            print(f"epoch {epoch}: loss {sum(part) / len(part):.4f}, {seconds[-1] * 1e3:.0f} ms", flush=True)
    accuracy = trainer.accuracy(*loaders.show(client.get_dataset(f"{given.set}/test")))
    if given.json:
        print(json.dumps({"loader": wanted, "losses": trainer.losses, "epochs_s": seconds, "accuracy": accuracy}), flush=True)
    else:
        print(f"knows {accuracy:.2%}", flush=True)
    if given.hold:
        sys.stdin.read()
    loaders.close(loader)


def full_name(part: str) -> str:
    """Returns the name of the only loader whose name contains `part`. Exits if there is none or more than one."""
    names: list[str] = [value for key, value in vars(loaders).items() if key.isupper()]
    found = [name for name in names if name.endswith(part)] or [name for name in names if part in name]
    if len(found) != 1:
        sys.exit(f"train.py: --loader {part!r} means {' and '.join(map(repr, found)) or 'none'} of: {', '.join(names)}")
    return found[0]


if __name__ == "__main__":
    main()
