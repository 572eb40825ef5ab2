"""Names of other machines, as a program sees them on a machine that has no gateway, and with documents of nodes that lie."""

import json

import pytest

import tensorlend


def test_without_a_gateway_names_are_this_machines(client):
    client.put("x", [1])
    assert client.nodes() == [] and client.placement("x") is None and client.placement("node7/x") is None
    with pytest.raises(tensorlend.NotFoundError):
        client.get("node7/x")
    with pytest.raises(tensorlend.TimeoutError):
        client.wait_for("node7/x", 0.01)
    with pytest.raises(tensorlend.RemoteError, match="node7"):
        client.put_remote("node7/x", [1, 2])
    with pytest.raises(ConnectionError):
        client.fetch_list("node7/l")
    with pytest.raises(tensorlend.RemoteError, match="tensorlend-gateway"):
        client.remote_names()


def test_nodes_are_as_their_documents_say(client):
    for node, here in [("node7", False), ("home", True)]:
        document = {"v": 1, "node": node, "epoch": "0" * 16, "alive": True, "here": here}
        client.put(f".gateway/node/{node}", bytearray(json.dumps(document).encode()))
    client.put(".gateway/node/liar", bytearray(b"{}"))
    assert [(node["node"], node["here"]) for node in client.nodes()] == [("home", True), ("node7", False)]
    # A name behind this machine's own node is a name of this machine.
    client.put("x", [1, 2])
    assert client.get("home/x").numpy().tolist() == [1, 2]
    client.put_remote("home/y", [3])
    assert client.get("y").numpy().tolist() == [3]
