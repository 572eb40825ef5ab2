"""The faults. Each function gets a cell in which values flow, and returns when they flow again or never will."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

import world
from cell import Cell, GaveUp, Part


def nothing(cell: Cell) -> None:
    """No fault: a producer and a consumer are stopped when asked, and others take their places."""
    for part in (cell.victim.producer, cell.victim.readers[0]):
        if not cell.system.restarts:
            _replace_in_order(cell, part)


def _replace_in_order(cell: Cell, part: Part) -> None:
    """Stops a process by command, and starts its replacement."""
    pid = part.pid
    if pid is None:
        raise GaveUp(f"{part.name} has no process")
    part.command("stop")
    cell.wait(lambda: not world.alive(pid), 5)
    part.ended.add(pid)
    # Values that the stopped process received do not count for its replacement.
    stopped = time.monotonic()
    part.replace()
    cell.heal(stopped)


def _kill_often(cell: Cell, part: Part) -> None:
    for _ in range(cell.kills):
        cell.sleep(cell.random.uniform(0, 0.3))
        killed = part.kill()
        part.replace()
        cell.heal(killed)


def kill_producer(cell: Cell) -> None:
    """SIGKILL of the producer at random moments; another takes its place."""
    _kill_often(cell, cell.victim.producer)


def kill_consumer(cell: Cell) -> None:
    """SIGKILL of a consumer at random moments; another takes its place."""
    _kill_often(cell, cell.victim.readers[0])


def kill_broker(cell: Cell) -> None:
    """SIGKILL of the broker at a random moment; another is started after 2 seconds."""
    _end_broker(cell, signal.SIGKILL)


def restart_broker(cell: Cell) -> None:
    """The broker is stopped as its documentation says, and started again."""
    _end_broker(cell, signal.SIGTERM)


def _end_broker(cell: Cell, how: signal.Signals) -> None:
    cell.sleep(cell.random.uniform(0, 0.3))
    pid = cell.system.broker_pid(cell.broker)
    ended = time.monotonic()
    cell.broker_killed = True
    if how == signal.SIGKILL:
        world.end([pid])
        cell.sleep(2)
        flowing = [part.name for part in cell.parts if part.role == "consumer" and part.progress() > ended + 1]
        cell.data["without broker"] = len(flowing)
    else:
        try:
            cell.system.stop_broker(cell.broker)
        except Exception as error:
            cell.note(f"the broker did not stop when asked: {error}")
            world.end([process.pid for process in cell.broker])
    began = time.monotonic()
    cell.restart_broker()
    cell.data["broker start_s"] = time.monotonic() - began
    cell.heal(began)


def stop_reader(cell: Cell) -> None:
    """SIGSTOP of a consumer for 4 seconds, then SIGCONT."""
    part = cell.victim.readers[0]
    pid = part.pid
    if pid is None:
        raise GaveUp("the consumer has no process")
    os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    cell.sleep(4)
    cell.accounts["while stopped"] = world.account()
    others = [each for each in cell.parts if each is not part]
    waited = [each.name for each in others if each.progress() < stopped + 2.5]
    cell.data["waited for the stopped reader"] = waited
    # Messages that the stopped reader misses are counted separately.
    cell.data["slow"] = part.name
    os.kill(pid, signal.SIGCONT)
    cell.heal(time.monotonic())


def _attack(cell: Cell, how: str) -> None:
    attacker = cell.victim.readers[0]
    excused = cell.data.setdefault("excused", [])
    excused.append(attacker.name)
    attacker.command(how)

    def over() -> bool:
        attacker.log.update()
        return attacker.log.last("attacked") is not None or not attacker.alive()

    begun = time.monotonic()
    cell.wait(over, 5)
    outcome = attacker.log.last("attacked")
    cell.data["attack"] = " ".join(outcome) if outcome else "the attacker died"
    cell.sleep(1)
    # The attacker's own faults do not count. Another consumer replaces it.
    attacker.kill()
    attacker.replace()
    cell.heal(begun + 1)


def write(cell: Cell) -> None:
    """A consumer writes into a value that it received, through the object that it got."""
    _attack(cell, "write")


def scribble(cell: Cell) -> None:
    """A consumer makes all its shared mappings writable and writes at random places."""
    _attack(cell, "scribble")


def truncate(cell: Cell) -> None:
    """A consumer cuts all shared files that it has open or mapped."""
    _attack(cell, "truncate")


def small_shm(cell: Cell) -> None:
    """/dev/shm has 64 MiB, and the producer's values grow to 8 MiB, then to 48 MiB."""
    _grow(cell, [8 << 20, 48 << 20])


def _grow(cell: Cell, sizes: list[int]) -> None:
    producer = cell.victim.producer
    usual = producer.app.size
    grown = []
    for size in sizes:
        producer.command("size", size)
        cell.sleep(1.5)
        cell.notice_deaths()
        arrived = any(seen.nbytes == size for part in cell.victim.readers for seen in part.log.seen)
        grown.append(f"{size >> 20} MiB {'arrived' if arrived else 'did not arrive'}")
        cell.notice_deaths()
    cell.data["grown"] = grown
    producer.command("size", usual)
    cell.heal(time.monotonic())


def memory(cell: Cell) -> None:
    """The producer's address space is limited to 112 MiB more than it has, and its values grow to 64 MiB."""
    producer = cell.victim.producer
    pid = producer.pid
    if pid is None:
        raise GaveUp("the producer has no process")
    with open(f"/proc/{pid}/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + (112 << 20)
    old = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, old[1]))
    _grow(cell, [64 << 20])
    if world.alive(pid):
        resource.prlimit(pid, resource.RLIMIT_AS, old)


def descriptors(cell: Cell) -> None:
    """The broker (the producer, where there is none) may open one more descriptor; a consumer is stopped, another begins."""
    target = cell.system.broker_pid(cell.broker) if cell.broker else cell.victim.producer.pid
    if target is None:
        raise GaveUp("the producer has no process")
    highest = max(int(name) for name in os.listdir(f"/proc/{target}/fd"))
    old = resource.prlimit(target, resource.RLIMIT_NOFILE)
    resource.prlimit(target, resource.RLIMIT_NOFILE, (highest + 2, old[1]))
    part = cell.victim.readers[0]
    killed = part.kill()
    part.replace()
    cell.sleep(3)
    cell.data["joined under the limit"] = part.progress() > killed
    cell.notice_deaths()
    if world.alive(target):
        resource.prlimit(target, resource.RLIMIT_NOFILE, old)
    cell.heal(time.monotonic())


def fork(cell: Cell) -> None:
    """A consumer that holds a value forks, and so does the producer; the children end as programs do."""
    for part in (cell.victim.readers[0], cell.victim.producer):
        part.command("fork")
    cell.sleep(2.5)
    reader = cell.victim.readers[0]
    reader.log.update()
    states = [fields[0] for _, kind, fields in reader.log.other if kind == "inherited"]
    cell.data["child"] = "no value" if not states else "whole" if all(state == "1" for state in states) and len(states) == 2 else "torn or cut short"
    cell.heal(time.monotonic())


def upgrade(cell: Cell) -> None:
    """The broker is stopped, and one of the next version is started. Without a broker, a consumer and then the producer are replaced."""
    cell.data["upgraded"] = f"{cell.system.older()} to {cell.system.newer()}"
    cell.system.stage = "newer"
    if cell.system.has_broker:
        _end_broker(cell, signal.SIGTERM)
    else:
        for part in (cell.victim.readers[0], cell.victim.producer):
            _replace_in_order(cell, part)


class Fault(NamedTuple):
    run: Callable[[Cell], None]
    title: str
    needs_broker: bool = False
    #: The size of /dev/shm.
    shm: int = world.LARGE
    #: Whether the system begins with an older version.
    older: bool = False


ALL = {
    "nothing": Fault(nothing, "no fault"),
    "kill-producer": Fault(kill_producer, "SIGKILL of the producer"),
    "kill-consumer": Fault(kill_consumer, "SIGKILL of a consumer"),
    "kill-broker": Fault(kill_broker, "SIGKILL of the broker", needs_broker=True),
    "restart-broker": Fault(restart_broker, "restart of the broker", needs_broker=True),
    "stop-reader": Fault(stop_reader, "SIGSTOP of a reader"),
    "write": Fault(write, "a reader writes into a value"),
    "scribble": Fault(scribble, "a reader writes everywhere"),
    "truncate": Fault(truncate, "a reader's ftruncate"),
    "small-shm": Fault(small_shm, "/dev/shm of 64 MiB", shm=64 << 20),
    "memory": Fault(memory, "a limit of memory"),
    "descriptors": Fault(descriptors, "a limit of descriptors"),
    "fork": Fault(fork, "fork"),
    "upgrade": Fault(upgrade, "upgrade", older=True),
}
