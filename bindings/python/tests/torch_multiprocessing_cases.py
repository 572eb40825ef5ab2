"""Cases of torch.multiprocessing. The program prints what each side sees, for tensors of a few bytes and of 1 MiB.

Arguments: the start method. With SMALLEST in the environment, every process lends arrays and tensors of this many bytes.
"""

import concurrent.futures
import os
import sys
import warnings
from multiprocessing.reduction import ForkingPickler

import numpy as np
import torch
import torch.multiprocessing as mp

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
if "SMALLEST" in os.environ:
    import tensorlend.multiprocessing
    import tensorlend.torch

    tensorlend.torch.install(smallest=int(os.environ["SMALLEST"]))
    tensorlend.multiprocessing.install(smallest=int(os.environ["SMALLEST"]))

kept = {}


def fill(value, number):
    value.fill_(number)


def fill_all(value, number):
    for tensor in value.values() if isinstance(value, dict) else value:
        tensor.fill_(number) if isinstance(tensor, torch.Tensor) else fill_all(tensor, number)


def total(tensor):
    return float(tensor.double().sum())


def keep(value):
    kept["value"] = value


def keep_also(value):
    kept["other"] = value


def total_of_kept(name="value"):
    return total(kept[name])


def fill_kept(number):
    kept["value"].fill_(number)


def make(size):
    kept["value"] = torch.ones(size)
    return kept["value"]


def same(value):
    return value


def are_one(first, second):
    first.fill_(5)
    return first is second, total(second)


def shared(tensor):
    return tensor.is_shared(), type(tensor).__name__, tensor.requires_grad, tensor.stride(), tensor.storage_offset()


def set_data(tensor, number):
    with torch.no_grad():
        tensor.fill_(number)


def fill_storage(storage, number):
    storage.fill_(number)


def write(array):
    array[:] = 9
    return array.flags.writeable, float(array.sum())


def double(value):
    return value * 2


def serve(inbox, outbox):
    torch.set_num_threads(1)
    while (order := inbox.get()) is not None:
        call, arguments = order
        outbox.put(call(*arguments))
        del call, arguments, order


class Worker:
    """A process that calls functions."""

    def __init__(self, context):
        self.inbox, self.outbox = context.Queue(), context.Queue()
        self.process = context.Process(target=serve, args=(self.inbox, self.outbox), daemon=True)
        self.process.start()

    def __call__(self, function, *arguments):
        self.inbox.put((function, arguments))
        return self.outbox.get(timeout=120)

    def end(self):
        self.inbox.put(None)
        self.process.join(60)


def the_receiver_fills(size, worker, context):
    tensor = torch.zeros(size)
    worker(fill, tensor, 4)
    return total(tensor)


def the_sender_fills_later(size, worker, context):
    tensor = torch.zeros(size)
    worker(keep, tensor)
    tensor.fill_(3)
    return worker(total_of_kept)


def two_views_in_a_message(size, worker, context):
    base = torch.zeros(size)
    return worker(are_one, base, base.view(-1)), total(base)


def two_views_in_two_messages(size, worker, context):
    base = torch.zeros(2 * size)
    worker(keep, base[:size])
    worker(keep_also, base)
    worker(fill_kept, 2)
    return worker(total_of_kept, "other"), total(base)


def one_tensor_twice(size, worker, context):
    tensor = torch.zeros(size)
    return worker(are_one, tensor, tensor)


def a_slice(size, worker, context):
    base = torch.zeros(4 * size)
    worker(fill, base[size : 2 * size], 7)
    return total(base), worker(shared, base[size:])


def a_transposed_tensor(size, worker, context):
    base = torch.zeros(size, 2)
    worker(fill, base.T, 1)
    return total(base), worker(shared, base.T)


def nested(size, worker, context):
    value = {"a": torch.zeros(size), "b": [torch.zeros(size), (torch.zeros(size),)]}
    worker(fill_all, value, 6)
    return total(value["a"]), total(value["b"][0]), total(value["b"][1][0])


def a_result_is_shared(size, worker, context):
    tensor = worker(make, size)
    tensor.fill_(8)
    before = worker(total_of_kept)
    worker(fill_kept, 2)
    return before, total(tensor)


def there_and_back(size, worker, context):
    tensor = torch.zeros(size)
    back = worker(same, tensor)
    back.fill_(1)
    again = worker(same, back)
    again[0] = 5
    return total(tensor), total(back)


def shared_before(size, worker, context):
    tensor = torch.zeros(size).share_memory_()
    worker(fill, tensor, 4)
    return total(tensor), worker(shared, tensor)


def what_is_shared(size, worker, context):
    tensor = torch.zeros(size)
    before = tensor.is_shared()
    found = worker(shared, tensor)
    return before, found, tensor.is_shared(), worker(same, tensor).is_shared()


def a_parameter(size, worker, context):
    parameter = torch.nn.Parameter(torch.zeros(size))
    worker(set_data, parameter, 2)
    return total(parameter.detach()), worker(shared, parameter)


def a_leaf_that_requires_a_gradient(size, worker, context):
    leaf = torch.zeros(size, requires_grad=True)
    worker(set_data, leaf, 2)
    return total(leaf.detach()), worker(shared, leaf)


def a_tensor_with_a_history(size, worker, context):
    try:
        ForkingPickler.dumps(torch.zeros(size, requires_grad=True) * 2)
    except RuntimeError as error:
        return str(error)


def a_module(size, worker, context):
    module = torch.nn.Linear(size // 4, 4, bias=False)
    worker(set_data, module.weight, 0.5)
    module.share_memory()
    back = worker(same, module)
    set_data(back.weight, 0.25)
    return total(module.weight.detach()), sorted(back.state_dict())


def empty_and_scalar(size, worker, context):
    scalar = torch.tensor(3)
    worker(fill, scalar, 4)
    return worker(same, torch.empty(0, 3)).shape, scalar.item()


def dtypes(size, worker, context):
    found = []
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64):
        tensor = torch.zeros(size, dtype=dtype)
        worker(fill, tensor, 1)
        found.append((str(dtype), tensor[0].item(), str(worker(same, tensor).dtype)))
    return found


def conjugates(size, worker, context):
    tensor = torch.full((size,), 1 + 2j)
    found = worker(same, tensor.conj())
    return found.is_conj(), found[0].item(), worker(same, tensor.conj().imag)[0].item()


def an_expanded_tensor(size, worker, context):
    one = torch.zeros(1)
    found = worker(same, one.expand(size))
    one.fill_(3)
    return found.stride(), total(found)


def sparse(size, worker, context):
    found = worker(same, torch.eye(4).to_sparse())
    return found.is_sparse, total(found.to_dense())


def a_storage(size, worker, context):
    tensor = torch.zeros(size, dtype=torch.uint8)
    worker(fill_storage, tensor.untyped_storage(), 3)
    return total(tensor)


def by_pipe(size, worker, context):
    here, there = context.Pipe()
    tensor = torch.zeros(size)
    here.send(tensor)
    there.recv().fill_(2)
    return total(tensor)


def by_simple_queue(size, worker, context):
    queue = context.SimpleQueue()
    tensor = torch.zeros(size)
    queue.put([tensor])
    queue.get()[0].fill_(2)
    return total(tensor)


def arguments_of_a_process(size, worker, context):
    tensor = torch.zeros(size)
    process = context.Process(target=fill, args=(tensor, 2))
    process.start()
    process.join(120)
    # A forked child has a copy of a tensor that no program has shared.
    return process.exitcode, total(tensor)


def pools(size, worker, context):
    tensors = [torch.ones(size) for _ in range(3)]
    arrays = [np.ones(size) for _ in range(3)]
    with context.Pool(1) as pool:
        results = pool.map(double, tensors)
        written = pool.map(write, arrays)
        doubled = pool.map(double, arrays)
        pool.starmap(fill, [(tensor, 7) for tensor in tensors])
    doubled[0][:] = 5
    return [total(one) for one in results + tensors], [one.is_shared() for one in results], written, [float(one.sum()) for one in arrays + doubled]


def executors(size, worker, context):
    tensor, array = torch.zeros(size), np.zeros(size)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        executor.submit(fill, tensor, 3).result()
        written = executor.submit(write, array).result()
        back = executor.submit(same, array).result()
    back += 1
    return total(tensor), written, float(array.sum()), float(back.sum())


def managers(size, worker, context):
    with context.Manager() as manager:
        values = manager.list([torch.zeros(size), np.zeros(size)])
        values[0].fill_(2)
        found = values[1]
        found[:] = 3
        return total(values[0]), float(values[1].sum())


def arrays_are_copies(size, worker, context):
    array = np.zeros(2 * size)
    written = worker(write, array)
    back = worker(same, array[:size])
    back += 1
    again = worker(same, back)
    again += 1
    return written, [float(one.sum()) for one in (array, back, again)], again.flags.writeable


def read_only_arrays_arrive_writable(size, worker, context):
    array = np.zeros(size)
    array.flags.writeable = False
    return worker(write, array), float(array.sum())


def arrays_that_share_memory_part(size, worker, context):
    base = np.zeros(size)
    first, second, third = worker(same, (base, base, base[:]))
    first += 1
    return first is second, float(second.sum()), float(third.sum()), float(base.sum())


def a_tensor_of_an_array(size, worker, context):
    array = np.zeros(size)
    tensor = torch.from_numpy(array)
    worker(fill, tensor, 4)
    return total(tensor)


def many_messages(size, worker, context):
    tensors = [torch.zeros(size) for _ in range(40)]
    for number, tensor in enumerate(tensors):
        worker(fill, tensor, number)
    return [total(tensor) for tensor in tensors]


CASES = [
    the_receiver_fills, the_sender_fills_later, two_views_in_a_message, two_views_in_two_messages, one_tensor_twice, a_slice,
    a_transposed_tensor, nested, a_result_is_shared, there_and_back, shared_before, what_is_shared, a_parameter,
    a_leaf_that_requires_a_gradient, a_tensor_with_a_history, a_module, empty_and_scalar, dtypes, conjugates, an_expanded_tensor,
    sparse, a_storage, by_pipe, by_simple_queue, arguments_of_a_process, pools, executors, managers, arrays_are_copies,
    read_only_arrays_arrive_writable, arrays_that_share_memory_part, a_tensor_of_an_array, many_messages,
]  # fmt: skip


def main():
    context = mp.get_context(sys.argv[1])
    if sys.argv[1] == "forkserver":
        context.set_forkserver_preload(["torch"])
    worker = Worker(context)
    for size in (16, 1 << 18):
        for case in CASES:
            try:
                print(size, case.__name__, case(size, worker, context), flush=True)
            except Exception as error:
                print(size, case.__name__, type(error).__name__, error, flush=True)
    worker.end()


if __name__ == "__main__":
    main()
