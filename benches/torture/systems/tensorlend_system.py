"""tensorlend in system mode, without an fd store: docs/promises.md excludes this mode from the restart of a daemon."""

from __future__ import annotations

from systems import tensorlend


class Driver(tensorlend.Driver):
    title = "tensorlend, system mode"
    settings = 'mode = "system"'
    only = ("nothing", "kill-broker", "restart-broker", "small-shm")
