"""What it costs to have a model run beside the data: put an image, prepare it, run the model, take the answer.

    python inference.py --runner target/release/tensorlend-runner --onnxruntime libonnxruntime.so resnet50.onnx

Beside it, in the same run: the same model in each client's own process (the floor), and the time that the runner itself measures for the
model alone. Exchange is what remains of a call. Models of one input (1, 3, 224, 224) of float32.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import time
from typing import Any

import numpy as np

import tensorlend

WARM = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument("--runner", default="tensorlend-runner")
    parser.add_argument("--onnxruntime", help="its library; without it the model runs on rten")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 28])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1, help="of each runner, and of each process at the floor")
    arguments = parser.parse_args()
    with open(arguments.model, "rb") as file:
        model = file.read()
    with tensorlend.embedded() as broker:
        client = broker.connect()
        client.put_model("model", model)
        command = [arguments.runner, "--socket", str(broker.address), "--threads", str(arguments.threads)]
        if arguments.onnxruntime:
            command += ["--onnxruntime", arguments.onnxruntime]
        runner = subprocess.Popen(command, env={**os.environ, "ORT_DYLIB_PATH": ""})
        try:
            for clients in arguments.clients:
                rounds = max(arguments.rounds // clients, 10)
                print(json.dumps(measure(broker.address, client, clients, rounds, "calls", arguments)))
                print(json.dumps(measure(broker.address, client, clients, rounds, "in process", arguments)))
        finally:
            runner.kill()
            runner.wait()


def measure(
    address: str, client: tensorlend.Client, clients: int, rounds: int, way: str, arguments: Any
) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(clients), spawn.Queue()
    work = calls if way == "calls" else floor
    of_one = (address, barrier, results, rounds, arguments.model, arguments.threads)
    processes = [spawn.Process(target=work, args=(number, *of_one)) for number in range(clients)]
    for process in processes:
        process.start()
    times = [results.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    found: dict[str, Any] = {"way": way, "clients": clients, "rounds": rounds}
    for step in times[0]:
        found[f"{step}_us"] = round(statistics.median(us for one in times for us in one[step]), 1)
    if way == "calls":
        # The runner publishes its figures once a second.
        time.sleep(1.5)
        [alone] = client.model_statistics("model")
        found["model_alone_us"] = alone["run_us"]["p50"]
        if clients == 1:
            found["exchange_us"] = round(found["run_us"] - found["model_alone_us"], 1)
    return found


def calls(number: int, address: str, barrier: Any, results: Any, rounds: int, _model: str, _threads: int) -> None:
    client = tensorlend.connect(address)
    model = client.model("model")
    image, out = np.random.default_rng(number).random((1, 3, 224, 224), "f4"), None
    name = f"image/{number}"
    times: dict[str, list[float]] = {"put": [], "run": [], "unpack": []}
    for round in range(WARM + rounds):
        if round == WARM:
            barrier.wait()
        start = time.perf_counter()
        client.put(name, image)
        put = time.perf_counter()
        answer = model.run({"#0": name}, timeout=600)
        run = time.perf_counter()
        out = np.array(next(iter(answer.values())))
        end = time.perf_counter()
        answer.release()
        if round >= WARM:
            for step, took in (("put", put - start), ("run", run - put), ("unpack", end - run)):
                times[step].append(took * 1e6)
    assert out is not None and np.isfinite(out).all()
    results.put(times)


def floor(number: int, _address: str, barrier: Any, results: Any, rounds: int, model: str, threads: int) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    image, name = np.random.default_rng(number).random((1, 3, 224, 224), "f4"), session.get_inputs()[0].name
    times: dict[str, list[float]] = {"run": []}
    for round in range(WARM + rounds):
        if round == WARM:
            barrier.wait()
        start = time.perf_counter()
        session.run(None, {name: image})
        if round >= WARM:
            times["run"].append((time.perf_counter() - start) * 1e6)
    results.put(times)


if __name__ == "__main__":
    main()
