"""Names of other machines, by real gateways: two brokers, two gateways, one loopback."""

from pathlib import Path

import gateways
import numpy as np
import pytest
from waiting import LONG

import tensorlend


def test_values_are_read_waited_for_and_put(tmp_path: Path) -> None:
    with gateways.two(tmp_path) as (here, there):
        assert [(one["node"], one["here"], one["alive"]) for one in here.client.nodes()] == [
            ("here", True, True),
            ("there", False, True),
        ]
        pressure = np.arange(300_000, dtype="f4").reshape(300, 1000)
        there.client.put("sim/pressure", pressure)
        with pytest.raises(tensorlend.NotFoundError):
            here.client.get("there/sim/nothing")
        with pytest.raises(tensorlend.NotFoundError):
            here.client.get("nowhere/sim/pressure")

        before = here.client.placement("there/sim/pressure")
        assert before is not None and (before["node"], before["alive"], before["cached"]) == ("there", True, False)
        lease = here.client.get("there/sim/pressure")
        assert np.array_equal(lease.numpy(), pressure)
        after = here.client.placement("there/sim/pressure")
        assert after is not None and (after["cached"], after["stale"]) == (True, False) and after["stamp"]
        assert here.client.placement("sim/pressure") is None

        there.client.put("sim/pressure", pressure + 1)
        newer = here.client.wait_newer("there/sim/pressure", lease.version, LONG)
        assert np.array_equal(newer.numpy(), pressure + 1)
        out = np.zeros_like(pressure)
        here.client.get_into("there/sim/pressure", out)
        assert np.array_equal(out, pressure + 1)

        here.client.put_remote("there/inbox/goal", np.array([1, 2, 3], "u2"))
        goal = there.client.get("inbox/goal").numpy()
        assert goal.dtype == np.uint16 and goal.tolist() == [1, 2, 3]
        with pytest.raises(tensorlend.RemoteError, match="there"):
            here.client.put_remote("there/outbox/goal", [1])
        # A node finds its own names also under its node name.
        here.client.put_remote("here/own", [4])
        assert here.client.get("own").numpy().tolist() == [4]


def test_names_lists_and_streams_of_all_nodes(tmp_path: Path) -> None:
    with gateways.two(tmp_path) as (here, there):
        there.client.put("sim/x", np.ones(3))
        there.client.put("secret", np.ones(3))
        for number in range(5):
            there.client.append("runs", np.full(4, number))
        with there.client.stream("cam") as cam:
            found = here.client.remote_names()
            assert found["silent"] == [] and not found["more"]
            kinds = {name["name"]: name["kind"] for name in found["names"]}
            assert kinds == {"there/sim/x": "tensor", "there/runs": "list", "there/cam": "stream"}
            [one] = here.client.remote_names("there/sim/*")["names"]
            assert (one["dtype"], one["shape"], one["size"], one["cached"]) == ("f64", [3], 24, False)

            with here.client.subscribe("there/cam") as frames:
                for number in range(3):
                    cam.send(np.array([number]))
                    assert frames.recv(LONG).numpy().tolist() == [number]

        assert here.client.fetch_list("there/runs") == 5
        there.client.append("runs", np.full(4, 5))
        assert here.client.fetch_list("there/runs") == 6
        items = [item.numpy().tolist() for item in here.client.get_all("there/runs")]
        assert items == [[number] * 4 for number in range(6)]
        with pytest.raises(tensorlend.NotFoundError):
            here.client.fetch_list("there/none")


def test_a_node_that_is_gone_leaves_what_was_read(tmp_path: Path) -> None:
    with gateways.two(tmp_path) as (here, there):
        there.client.put("sim/x", np.arange(5))
        there.client.put("sim/y", np.arange(5))
        assert here.client.get("there/sim/x").numpy().tolist() == list(range(5))
        there.end()
        here.sees("there", False)
        assert here.client.get("there/sim/x").numpy().tolist() == list(range(5))
        place = here.client.placement("there/sim/x")
        assert place is not None and (place["alive"], place["cached"], place["stale"]) == (False, True, True)
        with pytest.raises(ConnectionError, match="there"):
            here.client.get("there/sim/y")
        assert here.client.remote_names("there/sim/x")["silent"] == ["there"]
