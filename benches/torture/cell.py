"""One cell: a system in a world of its own, an honest pair, a victim application, and a fault.

The victim application has a producer and two consumers. The honest pair has a topic of its own. The cell starts all of them,
waits until values flow, calls the fault, heals what does not heal by itself, stops everything, and counts.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import systems
import world
from log import Log

HERE = Path(__file__).parent
#: Seconds without progress after which a survivor counts as stalled.
STALL_S = 5.0
#: The steps of the harness for a survivor without progress, in this order, and the time that it waits for the effect of
#: each.
CURES = [("nothing", STALL_S), ("reopen", 4.0), ("replace", 6.0), ("replace all", 8.0)]
#: Sizes in bytes and periods in seconds: of the victim's values and of the honest pair's.
VICTIM = (1 << 20, 0.05)
HONEST = (1 << 16, 0.02)


#: Seconds that a process needs to start on an idle machine. On a busy one, all waits grow with the time of the start.
USUAL_START_S, MOST_PATIENCE = 0.2, 8.0


def _start_s() -> float:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "import numpy"], check=True)
    return time.monotonic() - begun


class GaveUp(Exception):
    """The cell cannot continue."""


class Part:
    """A role's process, or the ones that replaced it."""

    def __init__(self, app: App, role: str, index: int) -> None:
        self.app, self.role, self.index = app, role, index
        self.name = f"{app.topic}-{role}-{index}"
        self.log = Log(app.cell.logs / f"{self.name}.log")
        self.control = app.cell.logs / f"{self.name}.control"
        self.control.touch()
        #: Pids that the harness has ended, whose values count no more.
        self.ended: set[int] = set()
        self.begun = 0
        self.child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        self.log.update()
        return self.log.pids[-1] if self.log.pids else None

    def alive(self) -> bool:
        return self.pid is not None and world.alive(self.log.pids[-1])

    def start(self) -> None:
        app = self.app
        self.log.update()
        self.begun = len(self.log.pids)
        config = {
            "system": app.cell.system_name, "folder": str(app.cell.folder), "role": self.role, "index": self.index, "topic": app.topic,
            "consumers": app.consumers, "size": app.size, "period": app.period, "log": str(self.log.path), "control": str(self.control),
            "keep": app.topic == "victim" and self.begun == 0,
        }  # fmt: skip
        if app.ancestor is not None and app.ancestor.stdin is not None:
            app.ancestor.stdin.write(json.dumps(config).encode() + b"\n")
            app.ancestor.stdin.flush()
        else:
            # A file of its own: an earlier process may not have read its file yet.
            path = app.cell.logs / f"{self.name}-{len(app.cell.children)}.json"
            path.write_text(json.dumps(config))
            self.child = app.cell.popen([sys.executable, str(HERE / "role.py"), str(path)], self.name, env=app.cell.environment())

    def command(self, *words: object) -> None:
        with open(self.control, "a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def progress(self) -> float:
        """When this part last sent a value, or received one of a producer that has not been ended."""
        self.log.update()
        if self.role == "producer":
            sent = self.log.sent
            return sent[-1].at if sent and sent[-1].pid not in self.ended else 0.0
        stale = self.app.producer.ended
        return next((seen.at for seen in reversed(self.log.seen[-64:]) if seen.pid not in stale), 0.0)

    def progress_after(self, since: float) -> float:
        """When this part made its first progress after a time."""
        if self.role == "producer":
            return next((sent.at for sent in self.log.sent if sent.at > since and sent.pid not in self.ended), since)
        stale = self.app.producer.ended
        return next((seen.at for seen in self.log.seen if seen.at > since and seen.pid not in stale), since)

    def kill(self) -> float:
        """Ends the process by SIGKILL, and returns the time."""
        pid = self.pid
        now = time.monotonic()
        # The newest process may not have begun yet.
        pids = {pid, self.child.pid if self.child is not None and self.child.poll() is None else None} - {None}
        self.ended |= pids
        world.end(pids)
        return now

    def replace(self) -> None:
        """Starts a process in the place of one that is gone, unless the system does that itself."""
        if not self.app.cell.system.restarts:
            self.start()

    def wait(self, what: Callable[[], bool], limit_s: float) -> bool:
        return self.app.cell.wait(what, limit_s)

    def stop(self) -> None:
        """Asks the process to end, and ends it if it does not."""
        pid = self.pid
        self.command("stop")
        if self.child is not None and self.child.poll() is None and self.child.pid != pid:
            world.end([self.child.pid])  # It has not begun.
        if pid is None:
            return
        if not self.wait(lambda: not world.alive(pid), 4) and not self.app.cell.system.restarts:
            self.app.cell.note(f"{self.name} did not stop when asked")
            os.kill(pid, signal.SIGTERM)
            if not self.wait(lambda: not world.alive(pid), 2):
                world.end([pid])


class App:
    """A topic with its producer and consumers."""

    def __init__(self, cell: Cell, topic: str, consumers: int, size: int, period: float) -> None:
        self.cell, self.topic, self.consumers, self.size, self.period = cell, topic, consumers, size, period
        self.ancestor: subprocess.Popen[bytes] | None = None
        self.ancestor_log = Log(cell.logs / f"{topic}-ancestor.log")
        self.producer = Part(self, "producer", 0)
        self.readers = [Part(self, "consumer", index) for index in range(consumers)]
        self.parts = [*self.readers, self.producer]

    def start(self) -> None:
        if self.cell.system.ancestor:
            path = self.cell.logs / f"{self.topic}-ancestor.json"
            config = {
                "system": self.cell.system_name, "folder": str(self.cell.folder), "role": "ancestor", "topic": self.topic,
                "consumers": self.consumers, "log": str(self.ancestor_log.path),
            }  # fmt: skip
            path.write_text(json.dumps(config))
            command = [sys.executable, str(HERE / "role.py"), str(path)]
            before = self.ancestor_log.count("ready")
            self.ancestor = self.cell.popen(command, f"{self.topic}-ancestor", stdin=subprocess.PIPE)

            def ready() -> bool:
                self.ancestor_log.update()
                return self.ancestor_log.count("ready") > before

            if not self.cell.wait(ready, self.cell.system.start_s):
                raise GaveUp(f"the ancestor of {self.topic} did not start")
        for part in self.parts:
            part.start()

    def end_ancestor(self) -> None:
        if self.ancestor is not None and self.ancestor.stdin is not None:
            try:
                self.ancestor.stdin.close()
                self.ancestor.wait(10)
            except (subprocess.TimeoutExpired, OSError):
                self.cell.note(f"the ancestor of {self.topic} did not stop when asked")
                world.end([self.ancestor.pid])


class Cell:
    def __init__(self, system: str, fault: str, seed: int, logs: Path, kills: int, quick: bool) -> None:
        self.system_name, self.fault, self.seed, self.logs, self.kills, self.quick = system, fault, seed, logs, kills, quick
        self.folder = Path("/tmp/cell")
        self.folder.mkdir()
        self.system = systems.load(system, self.folder)
        #: Factor for all timeouts. A check of this program may run on a machine that is busy with other tests.
        self.patience = 12.0 if quick else 1.0
        self.random = random.Random(f"{seed} {system} {fault}")
        self.children: list[subprocess.Popen[bytes]] = []
        self.broker: list[subprocess.Popen[bytes]] = []
        self.notes: list[str] = []
        #: Names of parts, each once per event.
        self.killed: list[str] = []
        self.stalled: list[str] = []
        self.cures: dict[str, str] = {}
        self.recoveries: list[float] = []
        self.accounts: dict[str, dict[str, int]] = {}
        self.faulted_at = 0.0
        self.broker_killed = False
        self.data: dict[str, Any] = {}

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def popen(self, command: list[str], name: str, **more: Any) -> subprocess.Popen[bytes]:
        with open(self.logs / f"{name}.out", "ab") as out:
            child = subprocess.Popen(command, stdout=out, stderr=out, cwd=self.folder, **{"stdin": subprocess.DEVNULL, **more})
        self.children.append(child)
        return child

    def environment(self) -> dict[str, str]:
        """Returns the environment of the application's next process. Before an upgrade, it puts the older packages first."""
        if self.system.stage != "older" or self.system.has_broker:
            return {**os.environ}
        folders = [systems.older_packages(), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}

    def reap(self) -> None:
        """Collects the children of this process, which as process 1 also gets the orphans."""
        for child in [*self.children, *self.broker]:
            child.poll()
        known = {child.pid for child in [*self.children, *self.broker] if child.returncode is None}
        try:
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None and found.si_pid not in known:
                os.waitpid(found.si_pid, 0)
        except ChildProcessError:
            pass

    def wait(self, what: Callable[[], bool], limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s * self.patience
        while not what():
            if time.monotonic() > deadline:
                return False
            self.reap()
            time.sleep(0.01)
        return True

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, seconds / self.patience)

    # The parts.

    @property
    def parts(self) -> list[Part]:
        return [*self.honest.parts, *self.victim.parts]

    def status_of(self, part: Part) -> str:
        """How a process ended."""
        pid = part.pid
        status = next((child.returncode for child in self.children if child.pid == pid), None)
        if status is None:
            part.app.ancestor_log.update()
            found = [fields for _, kind, fields in part.app.ancestor_log.other if kind == "exit" and fields[0] == str(pid)]
            status = int(found[-1][1]) if found and found[-1][1] != "None" else None
        if status is None:
            return "gone"
        return signal.Signals(-status).name if status < 0 else f"exit {status}"

    def notice_deaths(self) -> list[Part]:
        """Counts the processes that have ended and should not, and starts others."""
        self.reap()
        died = []
        for part in self.parts:
            pid = part.pid
            if pid is None or len(part.log.pids) <= part.begun or part.alive() or pid in part.ended:
                continue
            self.killed.append(f"{part.name} ({self.status_of(part)})")
            part.ended.add(pid)
            part.replace()
            died.append(part)
        if self.broker and not self.broker_killed and not world.alive(self.system.broker_pid(self.broker)):
            self.killed.append("broker")
            self.restart_broker()
        return died

    def start_broker(self) -> None:
        self.broker = self.system.start_broker()
        self.broker_killed = False

    def restart_broker(self) -> None:
        """Starts the broker again after its death, with what is left of its processes ended first."""
        for process in self.broker[:-1]:
            if process.poll() is None and not getattr(self.system, "keep_helpers", False):
                world.end([process.pid])
        try:
            self.start_broker()
        except Exception as error:
            self.note(f"the broker did not start again: {error}")

    def heal(self, since: float, parts: list[Part] | None = None) -> None:
        """Waits until each part makes progress after `since`. Counts the parts that do not, and cures them."""
        parts = parts or self.parts
        mark = since
        waiting = list(parts)
        for cure, limit_s in CURES:
            if cure != "nothing":
                mark = time.monotonic()
                self.stalled += [part.name for part in waiting if part.name not in self.stalled]
                for part in waiting:
                    self.cures[part.name] = cure
                self._cure(cure, waiting)
            deadline = time.monotonic() + limit_s * self.patience
            while waiting and time.monotonic() < deadline:
                self.notice_deaths()
                waiting = [part for part in parts if part.progress() <= mark]
                time.sleep(0.01)
            if not waiting:
                self.recoveries.append(max(part.progress_after(since) for part in parts) - since)
                return
        self.note(f"never recovered: {', '.join(part.name for part in waiting)}")
        self.recoveries.append(float("inf"))

    def _cure(self, cure: str, parts: list[Part]) -> None:
        if cure == "reopen":
            for part in parts:
                part.command("reopen")
        elif cure == "replace":
            for part in parts:
                part.kill()
                part.replace()
        else:
            for app in {part.app.topic: part.app for part in parts}.values():
                for part in app.parts:
                    part.kill()
                if app.ancestor is not None:
                    world.end([app.ancestor.pid])
                    app.ancestor.wait()
            if self.broker and not world.alive(self.system.broker_pid(self.broker)):
                self.restart_broker()
            for app in {part.app.topic: part.app for part in parts}.values():
                app.start()

    # The whole cell.

    def run(self, fault: Callable[[Cell], None]) -> dict[str, Any]:
        self.data["version"] = self.system.version()
        self.patience = self.data["patience"] = max(self.patience, min(MOST_PATIENCE, _start_s() / USUAL_START_S))
        self.accounts["empty"] = world.account()
        begun = time.monotonic()
        try:
            self.start_broker()
            period = 5 if self.quick else 1
            self.victim = App(self, "victim", 2, *VICTIM)
            self.honest = App(self, "honest", 1, HONEST[0], HONEST[1] * period)
            self.victim.start()
            self.honest.start()
            self._wait_for_start(begun)
            self.sleep(0.5 if self.quick else 2)
            self.accounts["before"] = world.account()
            self.faulted_at = time.monotonic()
            fault(self)
            self.sleep(0.3 if self.quick else 1)
            self.notice_deaths()
            self.accounts["after"] = world.account()
            self.data["healed_at"] = time.monotonic()
            self._fetch()
        except GaveUp as error:
            self.note(str(error))
            self.data["gave up"] = str(error)
        finally:
            self._stop()
        return self.result()

    def _wait_for_start(self, begun: float) -> None:
        def flows() -> bool:
            return all(part.progress() > 0 for part in self.parts)

        if not self.wait(flows, self.system.start_s):
            slow = [part for part in self.parts if part.progress() == 0]
            errors = [error for part in self.parts for error in part.log.errors()]
            raise GaveUp(f"no values at the start: {', '.join(part.name for part in slow)}; {'; '.join(errors[:3])}")
        self.data["start_s"] = time.monotonic() - begun

    def _fetch(self) -> None:
        """Asks a consumer for the value that was kept at the start."""
        if not self.system.keeps:
            return
        reader = self.victim.readers[1]
        reader.command("fetch")

        def fetched() -> bool:
            reader.log.update()
            return reader.log.last("fetched") is not None

        self.wait(fetched, 4)
        state = reader.log.last("fetched")
        self.data["kept"] = state[0] if state else "no reply"

    def _stop(self) -> None:
        if not hasattr(self, "honest"):
            world.end(world.processes())
            return
        # The producers first, so that the consumers can receive the messages in flight.
        for part in (self.victim.producer, self.honest.producer):
            part.stop()
        self.sleep(0.2)
        for part in (*self.victim.readers, *self.honest.readers):
            part.stop()
        for app in (self.victim, self.honest):
            app.end_ancestor()
        self.sleep(0.3)
        self.accounts["stopped"] = world.account()
        try:
            self.system.stop_broker(self.broker)
        except Exception as error:
            self.note(f"the broker did not stop when asked: {error}")
            world.end([process.pid for process in self.broker])
        self.sleep(0.3)
        left = world.processes()
        self.data["left"] = [world.name(pid) for pid in left]
        self.accounts["end"] = world.account()
        world.end(left)
        self.sleep(0.1)
        self.accounts["bare"] = world.account()

    # The counts.

    def torn(self) -> int:
        return sum(1 for part in self.parts for seen in part.log.seen if not seen.whole)

    def lost(self) -> dict[str, int]:
        """For each consumer, the values that `send` returned for after its first value, from the fault on."""
        found = {}
        for app in (self.victim, self.honest):
            sent: dict[int, list[int]] = {}
            for each in app.producer.log.sent:
                if each.at < self.faulted_at - 0.1:
                    continue
                sent.setdefault(each.pid, []).append(each.number)
            for part in app.readers:
                if len(part.log.pids) > 1 or part.name in self.data.get("excused", []):
                    continue  # Another process took its place, and began anew.
                missing = 0
                for pid, numbers in sent.items():
                    got = {seen.number for seen in part.log.seen if seen.pid == pid}
                    if got:
                        missing += sum(1 for number in numbers if number > min(got) and number not in got)
                if missing:
                    found[part.name] = missing
        return found

    def latencies(self) -> dict[str, list[float]]:
        """The honest pair's latencies in milliseconds, and its longest gap: before the fault, and from the fault on."""
        seen = self.honest.readers[0].log.seen
        end = self.data.get("healed_at", time.monotonic())
        spans = {"before": (0.0, self.faulted_at or end), "during": (self.faulted_at or end, end)}
        result = {}
        for name, (begin, stop) in spans.items():
            values = sorted(each.latency_us / 1000 for each in seen if begin <= each.at < stop)
            times = [each.at for each in seen if begin <= each.at < stop]
            gap = max((after - before for before, after in zip(times, times[1:], strict=False)), default=0.0)
            if values:
                result[name] = [values[len(values) // 2], values[len(values) * 99 // 100], gap]
        return result

    def result(self) -> dict[str, Any]:
        for name in ("honest", "victim"):
            if not hasattr(self, name):
                setattr(self, name, App(self, name, 0, 0, 0))
        for part in self.parts:
            part.log.update()
        return {
            "system": self.system_name, "title": self.system.title, "fault": self.fault, "seed": self.seed, "kills": self.kills,
            "has_broker": self.system.has_broker, "killed": self.killed, "stalled": self.stalled, "cures": self.cures,
            "recoveries": self.recoveries, "accounts": self.accounts, "notes": self.notes, "torn": self.torn(), "lost": self.lost(),
            "latency": self.latencies(), "errors": {part.name: part.log.errors()[:5] for part in self.parts if part.log.errors()},
            "values": {part.name: len(part.log.seen) for part in self.parts if part.role == "consumer"}, **self.data,
        }  # fmt: skip
