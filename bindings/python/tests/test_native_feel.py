"""Objects behave as Python's and numpy's do: items, iteration, strides, texts, tables, context managers."""

import asyncio
import html.parser
import inspect
import re
import threading
import types
import typing

import numpy as np
import pytest

import tensorlend


def test_items_and_iteration_are_those_of_the_array(client):
    array = np.arange(6.0).reshape(2, 3)
    client.put("x", array)
    lease = client.get("x")
    assert lease[1, 2] == 5 and lease[-1].tolist() == [3, 4, 5] and lease[:, 1].tolist() == [1, 4]
    assert len(lease) == 2 and [row.tolist() for row in lease] == array.tolist()
    assert np.shares_memory(lease[0], lease.numpy())
    with pytest.raises(IndexError):
        lease[2]
    with pytest.raises(ValueError, match="read-only"):
        lease[0] = 1
    mine = client.get("x", mode="cow")
    mine[0] = 7
    assert mine[0].tolist() == [7, 7, 7] and client.get("x")[0, 0] == 0
    client.put("scalar", 3)
    with pytest.raises(TypeError):
        iter(client.get("scalar"))
    assert client.get("scalar")[()] == 3
    part = lease[1:]
    lease.release()
    del lease
    assert part.tolist() == [[3, 4, 5]], "a part keeps the lease"


def test_numbers_and_dicts(client):
    client.put("x", 2.5)
    client.put("y", [1, 2])
    assert float(client.get("x")) == 2.5 and int(client.get("x")) == 2
    with pytest.raises(TypeError):
        float(client.get("y"))
    with pytest.raises(tensorlend.DTypeError, match="put_dataset"):
        client.put("x", {"a": 1})


def test_a_draft_is_written_by_items(client):
    with client.create((2, 3), np.int16, name="x") as draft:
        draft[:] = 1
        draft[1, 1:] = [5, 6]
        assert len(draft) == 2 and [int(row[1]) for row in draft] == [1, 5] and draft.itemsize == 2
    assert client.get("x").numpy().tolist() == [[1, 1, 1], [1, 5, 6]]
    with pytest.raises(tensorlend.ClosedError):
        draft[0] = 1


def test_a_draft_has_the_methods_of_a_lease(client):
    with client.create(3, name="x") as draft:
        assert draft.numpy() is draft.array and draft.numpy().flags.writeable
        draft.numpy()[:] = 2
    assert client.get("x").numpy().tolist() == [2, 2, 2]
    with pytest.raises(tensorlend.ClosedError, match="published or dropped already"):
        draft.numpy()


def test_answer_is_respond(client):
    server, caller = client.serve("v"), client.caller("v")

    def serve():
        server.recv(60).respond([1])
        server.recv(60).answer([2], metadata={"as": "before"}, timestamp=3)

    thread = threading.Thread(target=serve)
    thread.start()
    assert caller.call(0, 60).numpy().tolist() == [1]
    response = caller.call(0, 60)
    thread.join(60)
    assert (response.numpy().tolist(), response.metadata, response.timestamp) == ([2], {"as": "before"}, 3)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128"])
def test_strides_are_those_of_numpy(client, dtype):
    for array in [np.zeros((2, 3, 4), dtype), np.zeros((2, 3, 4), dtype, order="F"), np.zeros((), dtype)]:
        client.put("x", array)
        lease = client.get("x")
        assert lease.strides == lease.numpy().strides == client.info("x").strides == array.strides
        draft = client.create(array.shape, dtype, strides=array.strides)
        assert draft.strides == draft.array.strides == array.strides
    if dtype != "uint8":
        with pytest.raises(tensorlend.ArgumentError, match=r"strides of \(3, 1\) bytes: each must be a multiple"):
            client.create((2, 3), dtype, strides=(3, 1))


def test_dtypes_compare_with_those_of_numpy(client):
    for dtype in ["bool", "uint8", "int64", "float16", "float32", "complex64"]:
        client.put("x", np.zeros(3, dtype))
        found = client.get("x").dtype
        assert isinstance(found, np.dtype) and found == np.dtype(dtype) == dtype and found == getattr(np, dtype, np.bool_)
        assert hash(found) == hash(np.dtype(dtype)) and {found: 1}[np.dtype(dtype)] == 1
        assert found != np.dtype("S3") and list(np.zeros(2, found)) == [0, 0]
    client.create(2, "bfloat16", name="b").publish()
    assert client.get("b").dtype == "bfloat16" and {client.get("b").dtype, client.create(1, "bfloat16").dtype} != set()


def test_a_dtype_that_is_expected(client):
    client.put("x", np.zeros(3, np.float32))
    client.put_dataset("d", {"x": [1]})
    assert client.get("x", dtype=np.float32).dtype == client.wait_for("x", 10, dtype="float32").dtype == np.float32
    assert client.wait_newer("x", None, 10, dtype=np.dtype("f4")).dtype == "float32"
    for call in [
        lambda: client.get("x", dtype=float),
        lambda: client.wait_for("x", 10, dtype=np.int8),
        lambda: client.wait_newer("x", None, 10, dtype=np.int8),
    ]:
        with pytest.raises(tensorlend.DTypeError, match="'?\"?x\"?'? has elements of float32"):
            call()
    with pytest.raises(tensorlend.ArgumentError, match="get_dataset"):
        client.wait_for("d", 10, dtype=float)


@pytest.mark.parametrize("kind", ["Lease", "Draft", "DeviceLease", "DeviceDraft", "Batches"])
def test_generic_in_annotations(kind):
    made = getattr(tensorlend, kind)[np.float32]
    assert isinstance(made, types.GenericAlias) and typing.get_args(made) == (np.float32,)


def things(client, broker):
    """An object of each class that needs no device, and what closes it."""
    client.put("it's", np.arange(6, dtype=np.int16).reshape(2, 3))
    client.put_dataset("d", {"x": [1.0], "y": 2})
    stream = client.stream("s")
    subscription = client.subscribe("s", start="next")
    stream.send(np.zeros(2))
    message = subscription.recv(10)
    server, caller = client.serve("v"), client.caller("v")
    return {
        "Embedded": (tensorlend.embedded(), r"<Embedded at '.+', running>", "closed"),
        "Client": (broker.connect(), r"<Client of namespace '.+', 0 bytes in use>", "closed"),
        "Lease": (client.get("it's"), r"""<Lease "it's" int16 \(2, 3\), 12 bytes, read-only>""", "released"),
        "Dataset": (client.get_dataset("d"), r"<Dataset 'd': 'x' float64 \(1,\), 'y' int64 \(\); 16 bytes>", "released"),
        "Draft": (client.create(1, "int8", name="n"), r"<Draft 'n' int8 \(1,\), 1 byte, open>", "published or dropped"),
        "Stream": (stream, r"<Stream 's', capacity 8, 1 sent, 1 subscriber>", "closed"),
        "Subscription": (subscription, r"<Subscription to 's', next message 1, 0 lost>", "closed"),
        "Message": (message, r"<Message 0: <Lease 's' float64 \(2,\), 16 bytes, read-only>>", "released"),
        "Server": (server, r"<Server of 'v', 0 callers>", "closed"),
        "Caller": (caller, r"<Caller of 'v', 0 in flight>", "closed"),
        "Model": (client.model("m"), r"<Model 'm', open>", "closed"),
        "Batches": (client.batches(["d"]), r"<Batches, up to 16 ahead, 0 leased ahead>", "ended"),
    }


def test_every_class_has_a_text_and_is_closed_by_with(client, broker):
    found = things(client, broker)
    for kind, (thing, text, after) in found.items():
        assert type(thing).__name__ == kind and re.fullmatch(text, repr(thing)), repr(thing)
        assert repr(thing) in Cells(thing._repr_html_()).text
        with thing as same:
            assert same is thing
        assert after in repr(thing), repr(thing)
        assert after in thing._repr_html_()
    assert repr(client.info("it's")) == """<Info "it's": int16 (2, 3), 12 bytes>"""


def test_whatever_was_closed_raises_closed_error(client):
    client.put("x", [1.0])
    client.put_dataset("d", {"x": [1.0]})
    lease, member, dataset = client.get("x"), client.get_dataset("d")["x"], client.get_dataset("d")
    dropped, published = client.create(3), client.create(3)
    for one in (lease, member, dataset):
        one.release()
    dropped.drop()
    published.publish("y")
    for use in [
        lambda: lease.shape, lambda: lease.numpy(), lambda: lease.version, lambda: len(lease), lambda: lease[0], lambda: member.shape,
        lambda: np.from_dlpack(lease), lambda: client.wait_newer("x", lease, 0), lambda: client.put("z", lease), lambda: dataset.keys(),
        lambda: len(dataset), lambda: "x" in dataset, lambda: dataset["x"], lambda: dataset.numpy(), lambda: dataset.metadata,
        *(use for draft in (dropped, published) for use in (
            lambda draft=draft: draft.array, lambda draft=draft: draft.publish("z"), lambda draft=draft: draft.set_metadata(b"x"),
            lambda draft=draft: draft.set_timestamp(3), lambda draft=draft: client.put("z", draft), lambda draft=draft: draft[0],
        )),
    ]:
        with pytest.raises(tensorlend.ClosedError) as caught:
            use()
        assert caught.value.code == "TL-0408" and not isinstance(caught.value, tensorlend.ArgumentError)


def test_whatever_has_an_end_is_a_context_manager():
    for name in tensorlend.__all__:
        thing = getattr(tensorlend, name)
        if isinstance(thing, type) and {"close", "release", "drop", "respond"} & set(dir(thing)):
            assert {"__enter__", "__exit__"} <= set(dir(thing)), name


class Cells(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.text, self.open = [], []
        self.feed(text)
        assert self.open == [], "a tag is open"

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_tables_in_notebooks(client):
    client.put("<b>", np.arange(10000, dtype=np.float64).reshape(2, 50, 100))
    client.put("scalar", 3)
    client.put("empty", np.zeros((0, 3)))
    lease = client.get("<b>")
    cells = Cells(lease._repr_html_()).text
    assert {"float64", "(2, 50, 100)", "78.1 KiB", "303", "values [0, :4, :4]:"} <= set(cells) and "304" not in cells
    assert any("Lease '<b>'" in cell for cell in cells)
    assert "3" in Cells(client.get("scalar")._repr_html_()).text and Cells(client.get("empty")._repr_html_())
    draft = client.create(3, "int8")
    draft[:] = 7
    assert Cells(draft._repr_html_()).text.count("7") == 3
    draft.drop()
    lease.release()
    assert "released" in lease._repr_html_() and "dropped" in draft._repr_html_()
    client.put_dataset("d", {"x": [1.0], "y": 2})
    dataset = client.get_dataset("d")
    assert {"x", "y", "float64", "(1,)"} <= set(Cells(dataset._repr_html_()).text)
    with client.stream("s") as stream:
        assert {"capacity", "8"} <= set(Cells(stream._repr_html_()).text)
    assert "closed" in stream._repr_html_()
    assert {"name", "<b>", "dtype", "float64", "pid"} <= set(Cells(client.info("<b>")._repr_html_()).text)
    assert {"maxsize", "3"} <= set(Cells(client.queue("q", maxsize=3)._repr_html_()).text)
    for number in range(20):
        client.put(f"n/{number}", number)
    cells = Cells(client._repr_html_()).text
    assert {"<b>", "d", "dataset", "and 4 more names"} <= set(cells)
    client.close()
    assert "closed" in client._repr_html_()


def test_twins_wait_and_can_be_cancelled(client):
    stream = client.stream("s", capacity=1)
    lagging = client.subscribe("s", start="next")
    caller = client.caller("nobody")
    stream.send(1)
    seen = client.put("x", 1)
    calls = {
        "wait_for": (lambda: client.wait_for_async("later"), lambda: client.put("later", 1)),
        "wait_newer": (lambda: client.wait_newer_async("x", seen), lambda: client.put("x", 2)),
        "wait_length": (lambda: client.wait_length_async("l", 1), lambda: client.append("l", 1)),
        "subscribe": (lambda: client.subscribe_async("later", wait=300), lambda: client.stream("later")),
        "wait_subscribers": (lambda: stream.wait_subscribers_async(2), lambda: client.subscribe("s")),
    }
    blocked = [lambda: stream.send_async(2), lambda: caller.send_async(1), lambda: caller.call_async(1)]
    opened = []

    async def main():
        for name, (call, event) in calls.items():
            task = asyncio.create_task(call())
            await asyncio.sleep(0.01)
            assert not task.done(), name
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            task = asyncio.create_task(call())
            opened.append(event())
            opened.append(await asyncio.wait_for(task, 60))
        for call in blocked:
            task = asyncio.create_task(call())
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with pytest.raises(tensorlend.TimeoutError, match="waiting for"):
            await client.wait_for_async("never", 0.02)
        with pytest.raises(tensorlend.ArgumentError, match="give 0 or more"):
            await client.wait_for_async("never", -1)
        with pytest.raises(tensorlend.DTypeError):
            await client.wait_for_async("x", 60, dtype="int8")

    asyncio.run(main())
    assert lagging.position == 0 and opened[1].numpy() == 1 and opened[3].numpy() == 2 and opened[5] == 1
    assert isinstance(opened[7], tensorlend.Subscription) and opened[9] is None
    for _ in range(6000):
        if not [thread for thread in threading.enumerate() if thread.name == "tensorlend"]:
            break
        threading.Event().wait(0.01)
    else:
        pytest.fail("a cancelled wait goes on")


def test_no_response_is_lost_when_its_task_is_cancelled(client):
    """recv_async takes a response out; a cancelled task gives it back."""
    server, caller = client.serve("v"), client.caller("v")

    async def main():
        request = asyncio.create_task(server.recv_async(60))
        number = await caller.send_async(np.arange(3), 60)
        task = asyncio.create_task(caller.recv_async())
        await asyncio.sleep(0.01)
        call = await request
        call.respond(call.numpy() * 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        again, response = await caller.recv_async(60)
        assert again == number and response.numpy().tolist() == [0, 2, 4]

    asyncio.run(main())


def test_leased_bytes(client):
    client.put("x", np.zeros(100))
    assert client.leased() == 0
    with client.get("x"):
        assert client.leased() == 800
    assert client.leased() == 0


def test_twins_have_the_signature_in_their_text():
    assert str(inspect.signature(tensorlend.Client.wait_for_async)) == str(inspect.signature(tensorlend.Client.wait_for))
