"""Draws flame graphs of a trainer with py-spy, to compare where its time goes with different loaders."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
#: Pictures with more bytes are deleted.
BYTES_MAX = 300_000


def draw(socket: str, loader: str, batch: int, seconds: int, path: Path) -> str | None:
    """Records a trainer with this loader for some seconds after its first epoch and writes the flame graph to `path`.

    Returns None, or the reason why there is no picture.
    """
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return "py-spy is not installed (pip install py-spy)"
    command = [sys.executable, HERE / "train.py", "--socket", socket, "--loader", loader, "--batch", batch, "--epochs", 100_000]
    trainer = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    try:
        assert trainer.stdout is not None
        if not trainer.stdout.readline().startswith("epoch 0"):
            return "the trainer has failed"
        # `--function` groups samples by function instead of by line.
        spy = [program, "record", "--pid", trainer.pid, "--output", path, "--format", "flamegraph", "--function"]
        spy += ["--rate", 200, "--duration", seconds]
        done = subprocess.run(list(map(str, spy)), capture_output=True, text=True, timeout=seconds + 60)
    except subprocess.TimeoutExpired:
        return "py-spy did not end"
    finally:
        trainer.terminate()
        trainer.communicate()
    if done.returncode != 0 or not path.exists():
        return f"py-spy: {(done.stderr.strip() or str(done.returncode)).splitlines()[-1]}"
    if (size := path.stat().st_size) > BYTES_MAX:
        path.unlink()
        return f"the picture has {size} bytes"
    entitle(path, f"A trainer, batches of {batch}: {loader}")
    return None


def entitle(path: Path, title: str) -> None:
    """Replaces the picture's title, which is the command with its paths."""
    path.write_text(re.sub(r'(<text id="title"[^>]*>)[^<]*', lambda found: found[1] + html.escape(title), path.read_text()))
