"""The crash scoreboard of benches/torture: that its harness kills, counts and ends. A quick check, and no result."""

import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

HARNESS = pathlib.Path(__file__).parents[3] / "benches" / "torture"


@pytest.fixture
def harness(monkeypatch):
    """Imports a module of the harness."""
    if not (HARNESS / "__main__.py").is_file():
        pytest.skip("the harness is not here: the tests run without the sources")
    monkeypatch.syspath_prepend(str(HARNESS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(HARNESS) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def test_a_producer_is_killed(harness, tmp_path):
    why = harness("world").possible()
    if why is not None:
        pytest.skip(why)
    command = [sys.executable, str(HARNESS), "tensorlend,shared_memory", "kill-producer,upgrade", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = json.loads((tmp_path / "torture.json").read_text())["results"]
    # The processes of shared_memory descend from one. The build of the next layout may be missing.
    has_next = shutil.which("tensorlendd", path=os.environ.get("TENSORLEND_NEXT_BIN_DIR", ""))
    upgrades = [("tensorlend", "upgrade")] if has_next else []
    assert [(cell["system"], cell["fault"]) for cell in found] == [("tensorlend", "kill-producer"), ("shared_memory", "kill-producer"), *upgrades]
    for cell in found:
        assert "gave up" not in cell, cell
        # The consumers read values of the producer that took the killed one's place.
        assert len(cell["recoveries"]) == 1 and cell["recoveries"][0] != float("inf"), cell
        assert all(cell["values"].values()), cell
        assert cell["killed"] == [] and cell["torn"] == 0, cell
        if cell["fault"] == "upgrade":
            assert cell["upgraded"].endswith("to a build with the next layout of shared memory") and cell["kept"] == "whole", cell
    page = (tmp_path / "torture.md").read_text()
    assert "`python benches/torture tensorlend kill-producer --seed 1`" in page


def test_a_log_is_read_while_it_grows(harness, tmp_path):
    path = tmp_path / "part.log"
    log = harness("log").Log(path)
    log.update()
    path.write_text("1.0 begun 7\n2.0 sent 0 15\n2.5 value 0 7 120 0 64\n3.0 err")
    log.update()
    assert log.pids == [7] and log.sent[0].pid == 7
    assert not log.seen[0].whole and log.other == []
    with path.open("a") as file:
        file.write("or TypeError: no\n")
    log.update()
    assert log.errors() == ["TypeError: no"]


def test_a_verdict_names_each_harm(harness):
    report = harness("report")
    plain = {"accounts": {"stopped": {"shm": 0, "memfd": 1 << 20}}}
    cell = {
        "system": "a", "fault": "fork", "seed": 3, "killed": ["x (SIGBUS)"], "stalled": ["y"], "torn": 2, "lost": {"y": 4, "z": 9},
        "slow": "z", "kept": "lost", "recoveries": [0.5], "accounts": {"stopped": {"shm": 2 << 20, "memfd": 1 << 20}}, "left": ["p"],
    }  # fmt: skip
    said = report.verdict((cell, plain))
    for each in ("1 killed", "1 stalled", "2 torn", "4 lost", "9 lost at the stopped reader", "kept value lost", "2.0 MiB leaked", "1 processes left"):
        assert each in said, said
    assert "held by the broker" in report.verdict(({**cell, "has_broker": True}, plain))
    nothing = {"killed": [], "stalled": [], "torn": 0, "lost": {}, "recoveries": [0.5]}
    assert report.verdict((nothing, nothing)) == "ok; 0.50 s"


def test_a_verdict_of_several_runs_counts_them(harness):
    report = harness("report")
    nothing = {"killed": [], "stalled": [], "torn": 0, "lost": {}, "recoveries": [0.5]}
    runs = [nothing, {**nothing, "lost": {"y": 4}, "recoveries": [0.25, 0.1]}, {**nothing, "lost": {"y": 9}, "kept": "lost"}]
    said = report.verdict(*[(found, nothing) for found in runs])
    assert said == "**4 to 9 lost (2 of 3), kept value lost (1 of 3)**; 0.25 s to 0.50 s"
    broken = {"system": "a", "fault": "fork", "seed": 4, "gave up": "no values at the start"}
    assert report.verdict((nothing, nothing), (broken, nothing)) == "**1 of 2 not run**; 0.50 s"
    assert report.verdict((broken, nothing)) == "**no values at the start**"


def test_a_run_is_planned_and_estimated(harness):
    schedule, systems = harness("schedule"), harness("systems")
    runs = schedule.plan(["redis", "redis_aof", "iceoryx2"], ["nothing", "kill-broker", "fork"], [7, 8])
    # No broker in iceoryx2, and only some faults for the variant of Redis.
    first = [("redis", "nothing"), ("redis_aof", "nothing"), ("iceoryx2", "nothing"), ("redis", "kill-broker"), ("redis_aof", "kill-broker")]
    first += [("redis", "fork"), ("iceoryx2", "fork")]
    assert runs == [(*each, seed) for seed in (7, 8) for each in first]
    slow = [{"system": "redis", "fault": "fork", "wall_s": 100.0}]
    usual = systems.load("redis", pathlib.Path()).cell_s
    assert schedule.seconds([("redis", "fork", 7), ("redis", "nothing", 7)], slow) == 100.0 + usual


def test_an_upgrade_needs_an_older_version(harness, tmp_path, monkeypatch):
    schedule, report, systems = harness("schedule"), harness("report"), harness("systems")
    monkeypatch.setattr(systems.System, "version", lambda _: "0.10.0")
    monkeypatch.setenv("TORTURE_OLDER", str(tmp_path / "empty"))
    assert schedule.plan(["iceoryx2", "redis", "torch_mp"], ["upgrade"], [1]) == []
    assert report.absent("iceoryx2", "upgrade") == "no older version is installed"
    assert report.absent("torch_mp", "upgrade") == "all processes descend from one, of one version"
    for version, said in (("0.9.3", "not run"), ("0.11.0", "the installed version 0.10.0 is not newer than 0.11.0")):
        metadata = tmp_path / version / f"iceoryx2-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: iceoryx2\nVersion: {version}\n")
        monkeypatch.setenv("TORTURE_OLDER", str(tmp_path / version))
        assert report.absent("iceoryx2", "upgrade") == said
        assert len(schedule.plan(["iceoryx2"], ["upgrade"], [1])) == (said == "not run")


def test_drivers_are_short(harness):
    for path in (HARNESS / "systems").glob("[!_]*.py"):
        assert len(path.read_text().splitlines()) <= 100, path.name
    assert sorted(harness("systems").ALL) == sorted(path.stem for path in (HARNESS / "systems").glob("[!_]*.py"))


def test_a_reader_finds_what_it_can_write_to(harness, tmp_path):
    """A shared mapping of a memory file is found, and one that another process sealed is not cut."""
    attack = harness("attack")
    program = (
        "import fcntl, mmap, os, sys; sys.path.insert(0, sys.argv[1]); import attack\n"
        "files = [os.memfd_create(name, os.MFD_ALLOW_SEALING) for name in ('open', 'sealed')]\n"
        "[os.ftruncate(file, 4096) for file in files]\n"
        "maps = [mmap.mmap(file, 4096) for file in files]\n"
        "fcntl.fcntl(files[1], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)\n"
        "assert attack.scribble() == '2 mappings written, 0 refused', attack.scribble()\n"
        "assert any(maps[0]) and any(maps[1])\n"
        "assert attack.truncate() == '1 files cut, 1 refused'\n"
        "assert [os.fstat(file).st_size for file in files] == [0, 4096]\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(HARNESS)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert attack.write(None) == "no value"
