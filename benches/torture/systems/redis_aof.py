"""Redis with an append-only file: https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/."""

from __future__ import annotations

from systems import redis


class Driver(redis.Driver):
    title = "Redis, appendonly"
    options = ("--appendonly", "yes")
    only = ("nothing", "kill-broker", "restart-broker")
