"""Waits in asyncio: the processor time of idle tasks, and the time of a call. Two processes, of which one has the daemon.

    python asyncio_waits.py [--seconds 10] [--calls 2000]

Prints one JSON object. The floors are two wakeups by eventfd: the loop writes one, and the other process responds by another; it
blocks in `read`, or has a loop of its own. A name that ends in `_threads` is of the same wait by the method without `_async`, in a
thread of a pool.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import tensorlend

PEER = """
import asyncio, sys, threading, tensorlend
broker = tensorlend.embedded()
client = broker.connect()
blocking, awaiting = client.serve("blocking"), client.serve("awaiting")
streams = [client.stream(f"s{n}", capacity=2) for n in range(200)]
def serve():
    for call in blocking:
        call.respond(1)
threading.Thread(target=serve, daemon=True).start()
async def main():
    print(broker.address, flush=True)
    async for call in awaiting:
        call.respond(1)
asyncio.run(main())
"""


async def idle(client, seconds, waits):
    """Returns the processor time that waiting tasks take, in percent of one processor."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    await asyncio.sleep(2)
    before = time.process_time()
    await asyncio.sleep(seconds)
    spent = time.process_time() - before
    failed = [task.exception() for task in tasks if task.done()]
    threads = len(os.listdir("/proc/self/task"))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {"percent": round(100 * spent / seconds, 2), "threads": threads, "failed": len(failed)}


async def idle_threads(address, seconds, count):
    """Like `idle`, of subscriptions each of which waits in a thread."""
    with ThreadPoolExecutor(count) as pool, tensorlend.connect(address) as client:
        some = [client.subscribe(f"s{number}", start="next") for number in range(count)]

        async def wait(one):
            await asyncio.get_running_loop().run_in_executor(pool, one.recv)

        found = await idle(client, seconds, [wait(one) for one in some])
        # Ends the threads.
        client.close()
    return found


async def times(step, count):
    """Returns the median and the 90th percentile of the time of one step, in microseconds."""
    for _ in range(50):
        await step()
    taken = []
    for _ in range(count):
        began = time.perf_counter_ns()
        await step()
        taken.append((time.perf_counter_ns() - began) / 1000)
    taken.sort()
    return {"median_us": round(statistics.median(taken), 1), "p90_us": round(taken[len(taken) * 9 // 10], 1)}


class Floor:
    """Two eventfds with a process behind them."""

    def __init__(self, has_loop):
        self.there, self.back = os.eventfd(0), os.eventfd(0)
        self.child = os.fork()
        if self.child == 0:
            if has_loop:
                asyncio.run(self._serve())
            while True:
                os.read(self.there, 8)
                os.eventfd_write(self.back, 1)

    async def _serve(self):
        def respond():
            os.read(self.there, 8)
            os.eventfd_write(self.back, 1)

        asyncio.get_running_loop().add_reader(self.there, respond)
        await asyncio.Event().wait()

    async def step(self):
        loop = asyncio.get_running_loop()
        ready = loop.create_future()

        def readable():
            loop.remove_reader(self.back)
            os.read(self.back, 8)
            ready.set_result(None)

        loop.add_reader(self.back, readable)
        os.eventfd_write(self.there, 1)
        await ready

    def end(self):
        os.kill(self.child, 9)
        os.waitpid(self.child, 0)


async def measure(address, floors, seconds, calls):
    client = tensorlend.connect(address)
    found = {}
    found["floor_blocking"] = await times(floors[0].step, calls)
    found["floor_loop"] = await times(floors[1].step, calls)
    request = np.array(1)
    for service in ["blocking", "awaiting"]:
        caller = client.caller(service)
        found[f"call_{service}"] = await times(lambda caller=caller: caller.call_async(request), calls)
        found[f"call_{service}_threads"] = await times(lambda caller=caller: asyncio.to_thread(caller.call, request), calls)
    names = [client.wait_for_async(f"never{number}") for number in range(1000)]
    found["idle_1000_names"] = await idle(client, seconds, names)
    some = [client.subscribe(f"s{number}", start="next", pollable=True) for number in range(100)]
    found["idle_100_subscriptions"] = await idle(client, seconds, [one.recv_async() for one in some])
    found["idle_1000_tasks_of_one_subscription"] = await idle(client, seconds, [some[0].recv_async() for _ in range(1000)])
    found["idle_100_subscriptions_threads"] = await idle_threads(address, seconds, 100)
    found["idle_none"] = await idle(client, seconds, [])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    floors = [Floor(has_loop) for has_loop in (False, True)]
    with subprocess.Popen([sys.executable, "-c", PEER], stdout=subprocess.PIPE, text=True) as peer:
        try:
            address = peer.stdout.readline().strip()
            print(json.dumps(asyncio.run(measure(address, floors, options.seconds, options.calls))))
        finally:
            peer.kill()
            for floor in floors:
                floor.end()


if __name__ == "__main__":
    main()
