"""A process that is killed at one step of sending or receiving an array."""

import os
import signal
import sys
from multiprocessing.connection import Connection

import numpy as np

import tensorlend
import tensorlend.multiprocessing
from tensorlend import _transit


def die(*_arguments, **_options):
    os.kill(os.getpid(), signal.SIGKILL)


class Client:
    """A client or a module whose process dies before or after one of its calls."""

    def __init__(self, client, step):
        self._client = client
        self._step = step

    def __getattr__(self, name):
        call = getattr(self._client, name)
        if not self._step.endswith(f" {name}"):
            return call

        def deadly(*arguments, **options):
            if options.get("ephemeral"):
                return call(*arguments, **options)  # the presence, which is no message
            if self._step.startswith("after"):
                call(*arguments, **options)
            die()

        return deadly


def main():
    role, step, address, descriptor, length = sys.argv[1:]
    pipe = Connection(int(descriptor))
    client = Client(tensorlend.connect(address), step)
    if role == "send":
        tensorlend.multiprocessing.install(client=client)
        pipe.send(np.arange(int(length)))
    else:
        _transit.client_for = lambda *_: client
        _transit._native = Client(_transit._native, step)
        pipe.recv()
    die()


main()
