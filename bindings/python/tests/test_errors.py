"""Exceptions: each is what programs of Python expect, and says what to do."""

import builtins
import errno
import pathlib
import pickle
import re

import numpy as np
import pytest

import tensorlend

BASES = {
    tensorlend.ArgumentError: ValueError,
    tensorlend.ClosedError: ValueError,
    tensorlend.ConflictError: tensorlend.Error,
    tensorlend.DaemonStartError: RuntimeError,
    tensorlend.DamagedError: RuntimeError,
    tensorlend.ForkedError: RuntimeError,
    tensorlend.IncompatibleError: RuntimeError,
    tensorlend.OpenFilesError: OSError,
    tensorlend.ServiceError: RuntimeError,
    tensorlend.SystemCallError: OSError,
    tensorlend.DTypeError: TypeError,
    tensorlend.NotFoundError: KeyError,
    tensorlend.TimeoutError: builtins.TimeoutError,
    tensorlend.DisconnectedError: ConnectionError,
    tensorlend.RemoteError: ConnectionError,
    tensorlend.LimitError: MemoryError,
    tensorlend.PermissionError: builtins.PermissionError,
    tensorlend.DeviceError: RuntimeError,
    tensorlend.StreamFullError: tensorlend.Error,
    tensorlend.StreamEndedError: tensorlend.Error,
    tensorlend.UntrustedPickleError: pickle.UnpicklingError,
}


@pytest.mark.parametrize("error", BASES, ids=lambda error: error.__name__)
def test_each_is_an_error_of_the_package_and_a_built_in_one(error):
    assert issubclass(error, tensorlend.Error)
    assert issubclass(error, BASES[error])


def test_every_exception_that_is_exported_is_tested_here():
    exported = [getattr(tensorlend, name) for name in tensorlend.__all__]
    errors = {one for one in exported if isinstance(one, type) and issubclass(one, Exception)}
    assert errors == {*BASES, tensorlend.Error}


def test_a_missing_name_reads_well(client):
    with pytest.raises(KeyError) as caught:
        client.get("weights")
    assert str(caught.value) == 'there is no tensor named "weights": see `tensorlend ls`, or wait for it with wait_for'


@pytest.mark.parametrize("error", BASES, ids=lambda error: error.__name__)
def test_each_class_has_a_code(error):
    assert re.fullmatch(r"TL-\d{4}", error.code) and error("text").code == error.code
    again = pickle.loads(pickle.dumps(error("text")))
    assert (type(again), str(again), again.code) == (error, "text", error.code)


def test_an_error_has_the_code_of_its_kind(client):
    subscribed = pytest.raises(tensorlend.NotFoundError, client.subscribe, "nothing")
    assert subscribed.value.code == "TL-0302" and tensorlend.NotFoundError.code == "TL-0301"


def test_too_many_open_files_are_no_lack_of_memory():
    error = tensorlend.OpenFilesError("text")
    assert not isinstance(error, MemoryError) and str(error) == "text"
    assert (error.errno, error.kind) == (errno.EMFILE, tensorlend.LimitKind.OPEN_FILES)
    assert pickle.loads(pickle.dumps(error)).errno == errno.EMFILE


def test_a_limit_has_a_kind_of_its_own():
    with tensorlend.embedded('[pool]\nbytes_max = "64MiB"') as broker, broker.connect() as client:
        with pytest.raises(tensorlend.LimitError) as caught:
            client.create(128 << 20)
    assert caught.value.kind is tensorlend.LimitKind.POOL_BYTES and caught.value.kind == "pool-bytes"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.kind, str(again)) == (caught.value.kind, str(caught.value))


def test_every_kind_of_limit_is_known_here():
    source = REPOSITORY / "shm-layout/src/limit.rs"
    if not source.is_file():
        pytest.skip("the sources are not here")
    kinds = re.findall(r'(?m)^    \w+ = \d+, "([a-z-]+)";$', source.read_text())
    assert kinds and kinds == [str(kind) for kind in tensorlend.LimitKind]


class Tensor:
    """A tensor as torch has it, of which DLPack exports nothing."""

    def __init__(self, layout, is_meta):
        self.layout, self.is_meta = layout, is_meta

    def __dlpack__(self, **_):
        raise BufferError("cannot be exported")

    def __dlpack_device__(self):
        raise ValueError("Unknown device type meta for Dlpack")


def frame():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    return pandas.DataFrame({"a": ["x", "y"]})


def data_array():
    return pytest.importorskip("xarray", reason="xarray is not installed").DataArray([1, 2], dims=["x"])


def sparse():
    return pytest.importorskip("scipy.sparse", reason="scipy is not installed").coo_array(np.eye(2))


#: Calls with a wrong argument: each error describes the fault of the named argument, or the remedy.
WRONG = {
    "get(5)": (lambda client: client.get(5), TypeError, "a name must be a str, not int"),
    "put(array, name)": (lambda client: client.put(np.zeros(3), "x"), TypeError, "a name must be a str, not ndarray"),
    "names(5)": (lambda client: client.names(5), TypeError, "a name must be a str, not int"),
    "stream(5)": (lambda client: client.stream(5), TypeError, "a name must be a str, not int"),
    "get_many(name)": (lambda client: client.get_many("x"), TypeError, "must be a list or a tuple, not one str: put the name into a list"),
    "get_many([5])": (lambda client: client.get_many([5]), TypeError, "a name must be a str, not int"),
    "get_many(5)": (lambda client: client.get_many(5), TypeError, "must be a list or a tuple of str, not int"),
    "append_names(name)": (lambda client: client.append_names("l", "x"), TypeError, "put the name into a list"),
    "batches([5])": (lambda client: next(client.batches([5])), TypeError, r"must be a name \(str\) or a tuple of names, not int"),
    "create(3.5)": (lambda client: client.create(3.5, "f4"), TypeError, "a shape must be an int or a sequence of ints .*, not 3.5"),
    "create((2, 3.5))": (lambda client: client.create((2, 3.5)), TypeError, r"a shape must be an int .*, not \(2, 3.5\)"),
    "create(text)": (lambda client: client.create("ab"), TypeError, "a shape must be an int .*, not 'ab'"),
    "create(None)": (lambda client: client.create(None), TypeError, "a shape must be an int .*, not None"),
    "Client()": (lambda client: tensorlend.Client(), TypeError, r"made by tensorlend.connect\(\)"),
    "Client(address)": (lambda client: tensorlend.Client("/x", label="a"), TypeError, r"made by tensorlend.connect\(\)"),
    "client[name]": (lambda client: client["x"], KeyError, 'there is no tensor named "x"'),
    "client[5]": (lambda client: client[5], TypeError, "a name must be a str, not int"),
    "put(text)": (lambda client: client.put("x", "text"), TypeError, "are text: publish the value with put_object"),
    "put(None)": (lambda client: client.put("x", None), TypeError, "are Python objects, .*: publish the value with put_object"),
    "put(object)": (lambda client: client.put("x", object()), TypeError, "are Python objects, .*: publish the value with put_object"),
    "put(dict)": (lambda client: client.put("x", {"a": 1}), TypeError, "publish it with put_dataset"),
    "put(frame of text)": (lambda client: client.put("x", frame()), TypeError, "a DataFrame has labels, .*: publish it with put_object"),
    "put(DataArray)": (lambda client: client.put("x", data_array()), TypeError, "a DataArray has labels, .*: publish it with put_object"),
    "put(sparse)": (lambda client: client.put("x", sparse()), TypeError, r"a sparse tensor .*: pass a dense one .*\.toarray\(\)"),
    "put(sparse of torch)": (lambda client: client.put("x", Tensor("torch.sparse_coo", False)), TypeError, r"a sparse tensor .*\.to_dense\(\)"),
    "put(meta)": (lambda client: client.put("x", Tensor("torch.strided", True)), TypeError, '"meta" has no elements'),
    "put_dataset(nested)": (lambda client: client.put_dataset("d", {"a": {"b": 1}}), TypeError, 'tensor "a" of the dataset: .* a name such as "a/b"'),
    "put_dataset(array)": (lambda client: client.put_dataset("d", np.zeros(3)), TypeError, "must be a mapping of names to arrays, .* not ndarray"),
    "put_dataset({1: })": (lambda client: client.put_dataset("d", {1: 1}), TypeError, "a name must be a str, not int"),
    "get(list)": (lambda client: (client.append("l", 1), client.get("l")), KeyError, 'no tensor named "l", but a list has this name: read it with get_all'),
    "get(stream)": (lambda client: (client.stream("s"), client.get("s")), KeyError, "but a stream has this name: read it with subscribe"),
    "get_many([list])": (lambda client: (client.append("l", 1), client.get_many(["l"])), KeyError, "read it with get_all"),
    "run_model(name)": (lambda client: client.run_model("m"), TypeError, "'inputs'"),
    "run_model(array)": (lambda client: client.run_model("m", np.zeros(3)), TypeError, "must be a mapping of names to arrays"),
    "run_model(missing)": (lambda client: client.run_model("m", {"x": 1}, timeout=0), KeyError, 'there is no model named "m"'),
    "stream(capacity=0)": (lambda client: client.stream("s", capacity=0), ValueError, "a stream holds 1 to 65536 messages, not 0"),
    "stream(capacity=-1)": (lambda client: client.stream("s", capacity=-1), ValueError, "the number -1 is out of range"),
    "stream(capacity=1.5)": (lambda client: client.stream("s", capacity=1.5), TypeError, "a number must be an int, not float"),
    "queue(maxsize=None)": (lambda client: client.queue("q", maxsize=None), TypeError, "a number must be an int, not NoneType"),
    "create(stream=)": (lambda client: client.create(3, stream=1), ValueError, "stream= is for a tensor on a device: pass device="),
    "items(prefetch=300)": (lambda client: client.queue("q").items(prefetch=300), ValueError, "the number 300 is too large"),
}


@pytest.mark.parametrize("call", WRONG)
def test_a_wrong_argument_is_named_or_its_remedy(client, call):
    wrong, kind, says = WRONG[call]
    with pytest.raises(kind, match=says):
        wrong(client)


def test_objects_are_made_by_a_client_only():
    names = "Client Dataset Device DeviceDraft DeviceLease Draft Embedded Info Lease LegacyExport Message Stream Subscription"
    for name in names.split():
        with pytest.raises(TypeError):
            getattr(tensorlend, name)()


REPOSITORY = pathlib.Path(__file__).parents[3]
#: Folders whose error texts can reach a program in Python.
SOURCES = ["libclient/src", "apps/model/src", "bindings/python/src", "shm-layout/src", "os/src", "cuda/src", "daemon/src/embedded.rs", "daemon/src/config.rs"]
#: Files with texts of other languages' interfaces, or of programs.
ELSEWHERE = ("tests", "tests.rs", "sabotage.rs", "observe", "bin")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
#: Parts that no message in Python contains: Rust's paths, its calls (those of torch and numpy follow a dot), and its
#: values.
RUST = re.compile(r"\w::\w|(?<![.\w])(?!to_host\(|ascontiguousarray)[a-z_]+\(\)|\b[A-Z][a-z]+(?:[A-Z][a-z]+)*\(\d|\b(?:Some|None|Ok|Err)\(")
#: The tool's short names of dtypes; a name in quotes is the caller's.
SHORT = re.compile(r'(?<!")\b(?:[fiu](?:8|16|32|64)|bf16|c64|c128)\b')
CAMEL = re.compile(r"\b[A-Z][a-z]+[A-Z][a-zA-Z]*\b")
#: Names in that form that Python's users know: exported classes, and names of other packages.
KNOWN = {*tensorlend.__all__, "SharedLoader", "ListenSequentialPacket", "NaN", "TiB", "GiB", "MiB", "KiB"}


def texts(path):
    source = path.read_text()
    source = re.split(r"#\[cfg\(test\)\]\s*(?:pub )?mod \w+ \{", source)[0]
    source = LABELS.sub("", re.sub(r"(?m)^\s*//.*$", "", source))
    for literal in LITERAL.findall(source):
        text = re.sub(r"\\\n\s*", "", literal)
        # A string with one word is the name of a call or file; an error message has several words.
        if " " in text and not text.startswith("<"):
            yield text


def test_no_message_speaks_rust():
    if not (REPOSITORY / "libclient").is_dir():
        pytest.skip("the sources are not here")
    wrong, seen = [], 0
    for source in SOURCES:
        top = REPOSITORY / source
        for path in [top] if top.is_file() else sorted(top.rglob("*.rs")):
            if any(part in ELSEWHERE for part in path.relative_to(REPOSITORY).parts):
                continue
            for text in texts(path):
                seen += 1
                names = [name for name in CAMEL.findall(text) if name not in KNOWN]
                if names or RUST.search(text):
                    wrong.append(f"{path.relative_to(REPOSITORY)}: {text}")
    assert seen > 300 and wrong == []


#: Private words: an error, a log entry or a command's output uses the field's words.
PRIVATE = re.compile(r"\b(?:answer(?:s|ed)?|nobody|somebody|whoever|told|tells|anew|meanwhile|in vain)\b")
#: Labels for tests, and conditions that the code guarantees: users see neither.
LABELS = re.compile(r'(?:crash_point!|expect|reason = |(?:debug_)?assert\w*!\([^;]*?)\(?\s*"(?:[^"\\]|\\.)*"', re.DOTALL)


def test_messages_have_the_words_of_the_field():
    if not (REPOSITORY / "libclient").is_dir():
        pytest.skip("the sources are not here")
    wrong, seen = [], 0
    for path in sorted([*REPOSITORY.glob("*/src/**/*.rs"), *REPOSITORY.glob("*/*/src/**/*.rs")]):
        below = path.relative_to(REPOSITORY).parts
        if below[0] in ("tests", "benches", "baselines", "examples") or {"tests", "tests.rs", "crash.rs", "sabotage.rs"} & set(below):
            continue
        for text in texts(path):
            seen += 1
            if PRIVATE.search(re.sub(r"\{[^}]*\}", "", text)):
                wrong.append(f"{'/'.join(below)}: {text}")
    assert seen > 1000 and wrong == []


def provoked(client):
    """Calls that fail, of every kind that needs no other machine."""
    array, stream = np.zeros((2, 3), "f4"), client.stream("s", capacity=1, policy="error")
    client.put("tensor", array)
    client.put_dataset("dataset", {"a": 1})
    lagging = client.subscribe("s", start="next")
    stream.send(1)
    draft = client.create(3)
    draft.publish("draft")
    yield from (
        lambda: client.get("nothing"), lambda: client.get(""), lambda: client.get("x" * 300), lambda: client.get("dataset"),
        lambda: client.get_dataset("tensor"), lambda: client.get("tensor", mode="write"), lambda: client.get_value("nothing"),
        lambda: client.wait_for("nothing", 0), lambda: client.wait_newer("tensor", client.version("tensor"), 0),
        lambda: client.wait_newer("tensor", 3), lambda: client.wait_for("nothing", -1),
        *(lambda op=op: client.wait_length("nothing", 1, op, 0) for op in (">=", "==", "<")),
        lambda: client.wait_length("nothing", -1), lambda: client.subscribe("nothing"), lambda: client.subscribe("nothing", wait=0),
        lambda: client.subscribe("s", start="last"),
        lambda: client.stream("t", capacity=1 << 30), lambda: client.stream("t", policy="wait"),
        lambda: stream.send(2), lambda: stream.try_send(2), lambda: stream.wait_subscribers(9, 0),
        lambda: lagging.fileno(), lambda: (lagging.recv(9), lagging.recv(0)), lambda: client.get_all("nothing"),
        lambda: client.rename("nothing", "x"), lambda: client.copy("nothing", "x"), lambda: client.rename_list("nothing", "x"),
        lambda: client.info("nothing"), lambda: client.list("["), lambda: client.create(-1), lambda: client.create((1,) * 17),
        lambda: client.create((2, 3), strides=(8,)), lambda: client.create((2, 3), strides=(-72, 8)), lambda: client.create(3, strides=(3,)),
        lambda: client.put("x", np.zeros((1,) * 17)), lambda: client.append("x", np.zeros((1,) * 17)), lambda: stream.create((1,) * 17),
        lambda: client.put_remote("x", np.zeros((1,) * 17)), lambda: client.create(1 << 62), lambda: client.create((1 << 62, 9)), lambda: client.create(3, "f32"),
        lambda: client.create(3, "nonsense"), lambda: client.create(3, "O"), lambda: client.put("x", 1, metadata=bytes(70000)),
        lambda: client.put("x", 1, metadata={"a": object()}), lambda: client.put("x", 1, ttl=-1), lambda: client.put("x", 1, ttl=0),
        lambda: client.put("x", object()), lambda: client.put("x", 1, device="cuda:0"), lambda: client.put("x", 1, device="gpu"),
        lambda: client.put("x", draft), lambda: draft.array, lambda: draft.publish("x"), lambda: client.create(3).publish(),
        lambda: client.get_into("tensor", bytearray(3)), lambda: client.get_into("nothing", bytearray(3)),
        lambda: client.batches("name"), lambda: client.batches([], ahead=0), lambda: client.batches([], "jax"),
        lambda: next(client.batches(["nothing"])), lambda: client.append("x" * 300, 1), lambda: client.delete_stream(""),
        lambda: client.caller("nobody").call(1, 0), lambda: client.caller("x", capacity=0), lambda: client.serve(""),
        lambda: client.serve("quiet").recv(0), lambda: client.caller("x").recv(0), lambda: client.model("nothing").run({}, timeout=0),
        lambda: client.put_model("m", b""), lambda: client.put_model("m", b"x", batch_max=0), lambda: client.device_memory("cuda:0"),
        lambda: client.get("node/none"), lambda: client.put_remote("node/none", 1), lambda: client.fetch_list("node/none"),
        lambda: np.from_dlpack(client.get("tensor"), device="cuda"), lambda: client.get("tensor").__dlpack__(),
        lambda: memoryview(client.get("tensor")).__setitem__((0, 0), 1.0), lambda: tensorlend.connect("/nowhere"),
        lambda: tensorlend.embedded("pools = 1"), lambda: tensorlend.embedded("[pool]\nbytes_max = -1"),
        lambda: client.get_dataset("dataset")["b"], lambda: client.put_dataset("x" * 300, {"a": 1}),
        lambda: client.put_dataset("d", {"": 1}), lambda: client.put_dataset("d", {"a": "text"}), lambda: client.put_dataset("d", {1: 1}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "strides", "told"),
    [
        ((2, 2), (8,), "tensor of float64 (2, 2) with strides of (8,) bytes: it needs one stride for each dimension"),
        ((2, 3), (-72, 8), "tensor of float64 (2, 3) with strides of (-72, 8) bytes: an element lies outside its bytes"),
        ((1,) * 17, None, f"tensor of float64 {(1,) * 17}: it has more than 16 dimensions"),
    ],
)
def test_shapes_and_strides_are_told_as_numpy_does(client, shape, strides, told):
    with pytest.raises(tensorlend.ArgumentError) as caught:
        client.create(shape, strides=strides)
    assert str(caught.value) == told + ": correct its shape, strides or length"
    assert caught.value.code == "TL-0402"


def test_what_fails_is_said_in_pythons_words(client):
    wrong, count = [], 0
    for number, call in enumerate(provoked(client)):
        try:
            call()
        except Exception as error:
            text = str(error)
            if RUST.search(text) or SHORT.search(text) or any(name not in KNOWN for name in CAMEL.findall(text)):
                wrong.append(text)
            count += isinstance(error, tensorlend.Error)
        else:
            wrong.append(f"call {number} does not fail")
    assert wrong == [] and count > 55
