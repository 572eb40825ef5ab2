"""The runs of the scoreboard: which, in which order, and how long they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faults
import systems


def key(found: dict[str, Any]) -> tuple[str, str, int]:
    return found["system"], found["fault"], found["seed"]


def plan(able: list[str], chosen: list[str], seeds: list[int]) -> list[tuple[str, str, int]]:
    """The runs: by seeds, then by faults, so that a run that ends early has whole columns."""
    runs = []
    for seed in seeds:
        for fault in chosen:
            for name in able:
                driver = systems.load(name, Path())
                if (driver.has_broker or not faults.ALL[fault].needs_broker) and (not driver.only or fault in driver.only):
                    if faults.ALL[fault].older and without_older(driver):
                        continue
                    runs.append((name, fault, seed))
    return runs


def without_older(driver: systems.System) -> str:
    """Why a system has no older version here; empty if it has one."""
    try:
        driver.older()
    except LookupError as error:
        return str(error.args[0])
    return ""


def seconds(runs: list[tuple[str, str, int]], earlier: list[dict[str, Any]]) -> float:
    """An estimate of the runs' time: the time that the same cell took before, or what its driver says."""
    took = {(found["system"], found["fault"]): found["wall_s"] for found in earlier if "wall_s" in found}
    return sum(took.get((system, fault), systems.load(system, Path()).cell_s) for system, fault, _ in runs)
