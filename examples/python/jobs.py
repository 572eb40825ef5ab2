"""Shares work between processes: each image goes to one worker, and to another one if that worker is killed.

python jobs.py [IMAGES] [WORKERS]

One of the workers kills itself in the middle of its work. Needs numpy only.
"""

import multiprocessing
import os
import signal
import sys

import numpy as np

import tensorlend


def work(socket: str, fails: bool) -> None:
    client = tensorlend.connect(socket)
    jobs = client.queue("jobs")
    while True:
        with jobs.get() as job:  # confirms the item at the end of the block, gives it back after an exception
            if fails:
                os.kill(os.getpid(), signal.SIGKILL)
            image = job.numpy()  # in the producer's own pages: no copy
            client.append("means", [float(job.number), image.mean()])


def main() -> None:
    images = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    workers = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tensorlend.embedded() as broker:
        client = tensorlend.connect(broker.address)
        jobs = client.queue("jobs", maxsize=10)  # put waits while 10 images wait
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=work, args=(broker.address, n == 0), daemon=True) for n in range(workers)]
        for process in processes:
            process.start()
        for number in range(images):
            jobs.put(np.full((480, 640), number % 256, np.uint8))
        client.wait_length("means", images)
        done = {int(mean.numpy()[0]) for mean in client.get_all("means")}
        print(f"{len(done)} of {images} images are done")
        for process in processes:
            process.terminate()


if __name__ == "__main__":
    main()
