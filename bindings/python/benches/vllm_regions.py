"""The memory of killed engines: a region of vLLM's own offloading compared with lent blocks.

python benches/vllm_regions.py [--mib N]

Needs vLLM, and root for a mount of its own: /dev/shm has room for one and a half regions. For each contender, three engines start one after the other. Each takes
a region of N MiB, writes it, and is killed. The regions are vLLM's class `SharedOffloadRegion`, as `TieringOffloadingSpec` and `CPUOffloadingSpec` create it, which on a
CPU do not run themselves. The lent blocks are those of `BlockStore`, with a limit of N MiB.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import time

SHM = pathlib.Path("/dev/shm")
BLOCK = 1 << 20

ENGINES = {
    "vLLM, TieringOffloadingSpec": """
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
region = SharedOffloadRegion(str(uuid.uuid4()), mib, 0, 1 << 20, 1 << 20)
""",
    "vLLM, CPUOffloadingSpec": """
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
region = SharedOffloadRegion(str(uuid.uuid4()), mib, 0, 1 << 20, 1 << 20, barrier=lambda: None)
""",
    "tensorlend": """
import tensorlend
from tensorlend.kvcache import BlockStore, Identity
store = BlockStore(tensorlend.connect(address), Identity("m", "float16", 16), bytes_max=mib << 20)
for number in range(mib):
    assert store.save(f"{number:016x}{os.getpid():016x}", 1 << 20, lambda into: into.fill(1))
""",
}
HEAD = "import os, signal, sys, time, uuid\nmib, address = int(sys.argv[1]), sys.argv[2]\n"
TAIL = "print('started', flush=True)\ntime.sleep(3600)\n"


def engine(code: str, mib: int, address: str) -> str:
    """Starts an engine and kills it. Returns "started", or the last line of its error."""
    command = [sys.executable, "-c", HEAD + code + TAIL, str(mib), address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line == "started\n":
            process.kill()
            process.communicate()
            return "started"
    _, errors = process.communicate()
    return [line for line in errors.splitlines() if "Error" in line][-1]


def inside(mib: int) -> None:
    """Prints the table. /dev/shm is this process's own."""
    import tensorlend
    from tensorlend.kvcache import BlockStore, Identity

    print("| contender | starts | left after each kill, MiB of /dev/shm | left in the daemon, MiB |\n|---|---|--:|--:|")
    with tensorlend.embedded() as broker, broker.connect() as client:
        for name, code in ENGINES.items():
            starts, left, lent = [], [], []
            for _ in range(3):
                starts.append(engine(code, mib, broker.address))
                left.append(round(sum(path.stat().st_blocks * 512 for path in SHM.iterdir()) / (1 << 20)))
                lent.append(client.stat()["bytes_in_use"] >> 20)
            print(f"| {name} | {', '.join(starts)} | {', '.join(map(str, left))} | {', '.join(map(str, lent))} |")
            for path in SHM.iterdir():
                path.unlink()
        with broker.connect() as other:
            BlockStore(other, Identity("m", "float16", 16), bytes_max=1 << 30).evict(0)
            for entry in other.names("*"):
                other.delete(entry)
        end = time.monotonic() + 30
        while client.stat()["bytes_in_use"] and time.monotonic() < end:
            time.sleep(0.05)
        print(f"\nThe daemon's bytes in use after all blocks were evicted: {client.stat()['bytes_in_use']}.")


def main() -> None:
    """Starts this program again with a /dev/shm of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(arguments.mib)
        return
    size = arguments.mib * 3 // 2
    mounted = f'mount -t tmpfs -o size={size}m tmpfs /dev/shm && exec "$@"'
    command = [sys.executable, __file__, "--mib", str(arguments.mib), "--inside"]
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounted, "sh", *command])


if __name__ == "__main__":
    main()
