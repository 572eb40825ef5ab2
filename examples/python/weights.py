"""Loads weights that all processes of the machine share, and prints how much of them is this process's own.

python weights.py FILE.safetensors [PROCESSES]

Starts that many processes (4 by default), each of which loads the file and reads all of it. Needs numpy only; with torch, use
tensorlend.torch.load_file in the same way.
"""

import multiprocessing
import sys
import time

from tensorlend.numpy import load_file


def share_bytes() -> int:
    """This process's share of all memory that it has mapped: a page that N processes have mapped counts as an Nth."""
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def serve(path: str, loaded: "multiprocessing.synchronize.Barrier", shares: "multiprocessing.Queue[tuple[float, int]]") -> None:
    before, began = share_bytes(), time.perf_counter()
    arrays = load_file(path)
    took = time.perf_counter() - began
    for array in arrays.values():
        array.sum()
    # All processes have mapped the memory, so the shares no longer change.
    loaded.wait()
    shares.put((took, share_bytes() - before))
    loaded.wait()


def main() -> None:
    path, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4
    arrays = load_file(path)  # starts a daemon in this process if none runs
    nbytes = sum(array.nbytes for array in arrays.values())
    context = multiprocessing.get_context("spawn")
    loaded, shares = context.Barrier(count), context.Queue()
    processes = [context.Process(target=serve, args=(path, loaded, shares)) for _ in range(count)]
    for process in processes:
        process.start()
    found = [shares.get() for _ in processes]
    for process in processes:
        process.join()
    print(f"{count} processes, {nbytes:,} bytes of weights: {sum(share for _, share in found):,} bytes in all")
    print(f"loading took {max(took for took, _ in found) * 1e3:.1f} ms at the most")


if __name__ == "__main__":
    main()
