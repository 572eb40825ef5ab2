"""A simulation and a trainer, written for SmartRedis; the program does not mention tensorlend.

Each member of an ensemble simulates heat in a rod and publishes its state at every step. The trainer waits until all
members have published a step, and estimates the diffusivity from the states.
"""

import multiprocessing
import sys

import numpy as np
from smartredis import Client, Dataset

MEMBERS = 3
STEPS = 5
CELLS = 200


def simulate(member: int, diffusivity: float) -> None:
    client = Client(logger_name=f"member {member}")
    heat = np.zeros(CELLS)
    heat[CELLS // 2] = 1.0
    for step in range(STEPS):
        before = heat.copy()
        heat[1:-1] += diffusivity * (heat[2:] - 2 * heat[1:-1] + heat[:-2])
        state = Dataset(f"state {member} {step}")
        state.add_tensor("before", before)
        state.add_tensor("after", heat)
        state.add_meta_scalar("member", member)
        state.add_meta_string("unit", "K")
        client.put_dataset(state)
        client.append_to_list(f"step {step}", state)


def train() -> float:
    client = Client(logger_name="trainer")
    curvature, change = [], []
    for step in range(STEPS):
        if not client.poll_list_length(f"step {step}", MEMBERS, 100, 300):
            sys.exit(f"step {step} did not come")
        for state in client.get_datasets_from_list(f"step {step}"):
            before, after = state.get_tensor("before"), state.get_tensor("after")
            curvature.append(before[2:] - 2 * before[1:-1] + before[:-2])
            change.append((after - before)[1:-1])
    x, y = np.concatenate(curvature), np.concatenate(change)
    fitted = float(x @ y / (x @ x))
    client.put_tensor("diffusivity", np.array([fitted]))
    return fitted


if __name__ == "__main__":
    members = [multiprocessing.Process(target=simulate, args=(member, 0.2)) for member in range(MEMBERS)]
    for process in members:
        process.start()
    print(f"diffusivity {train():.3f} from {MEMBERS} members and {STEPS} steps")
    for process in members:
        process.join()
        if process.exitcode:
            sys.exit(f"a member ended with status {process.exitcode}")
