"""Weights under a name (docs/how-to/weights.md): `python -m tensorlend.weights load model.safetensors --name llama`."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from tensorlend import _weights
from tensorlend._native import connect

if TYPE_CHECKING:
    from tensorlend._native import Client, Version

__all__ = ["publish"]


def publish(path: str | os.PathLike[str], name: str, *, client: Client | None = None) -> Version:
    """Reads a safetensors file into lent memory, and publishes it under a name.

    `load_weights` of `tensorlend.numpy` and `tensorlend.torch` then returns these weights. The name changes to the new weights in one step.
    Processes that have loaded the older weights keep them.

    Parameters
    ----------
    path : str or path-like
        The file.
    name : str
        The name of the weights.
    client : Client or None, default None
        The client; None for the default client: of the running daemon, or of one in this process.

    Returns
    -------
    Version
        The version of the published value.

    Raises
    ------
    ArgumentError
        The file is no valid safetensors file, or somebody writes to it.
    LimitError
        The daemon has no memory left for the file.
    """
    return _weights.publish(path, name, client)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tensorlend.weights", description="Publishes files of weights.")
    commands = parser.add_subparsers(required=True)
    load = commands.add_parser("load", help="read a safetensors file into lent memory, and publish it under a name")
    load.add_argument("file")
    load.add_argument("--name", required=True)
    load.add_argument("--address", help="the daemon's socket; by default as in tensorlend.connect")
    load.add_argument("--namespace", help="the namespace; by default this user's own")
    arguments = parser.parse_args()
    with connect(arguments.address, namespace=arguments.namespace, label="weights") as client:
        publish(arguments.file, arguments.name, client=client)
        info = client.info(_weights.named(arguments.name))
    print(f"{info.name}: {info.nbytes} bytes")


if __name__ == "__main__":
    _main()
