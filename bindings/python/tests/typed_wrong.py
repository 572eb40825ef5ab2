"""Mistakes that mypy and pyright find: each line with a mark must be an error, and no other one. See test_typing.py."""

import numpy as np

import tensorlend
from tensorlend import Lease


def mistakes(client: tensorlend.Client, lease: Lease[np.float32]) -> None:
    client.get(3)  # mistake
    client.get("x").missing  # mistake
    client.get("x", mode="write")  # mistake
    client.put("x", np.zeros(3), device=object())  # mistake
    client.put("x", "text")  # mistake
    client.put("x", None)  # mistake
    client.put("x", {"a": 1})  # mistake
    client.create(3, dtype=object())  # mistake
    client.create(3, np.float32, stream="zero")  # mistake
    client.wait_for("x", "10")  # mistake
    client.stream("s", policy="wait")  # mistake
    client.caller("s").call_async(np.zeros(3), unknown=1)  # mistake
    wrong: Lease[np.int64] = lease  # mistake
    number: int = client.get_value("x")  # mistake
    print(wrong, number)
