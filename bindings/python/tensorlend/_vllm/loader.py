"""vLLM's load format `tensorlend`: weights from lent memory. See docs/how-to/weights.md.

vLLM calls `register` in each of its processes, by the entry point `tensorlend` of the group `vllm.general_plugins`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tensorlend import _native

if TYPE_CHECKING:
    import torch

#: The load format.
FORMAT = "tensorlend"


def register() -> None:
    """Registers the load format. Further calls have no effect."""
    from vllm.model_executor import model_loader  # type: ignore[import-not-found, import-untyped, unused-ignore]

    if FORMAT not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
        model_loader.register_model_loader(FORMAT)(_loader())


def weights_name(load_config: Any) -> str | None:
    """Returns the name of the weights, if vLLM loads them by a name."""
    extra = load_config.model_loader_extra_config if load_config.load_format == FORMAT else None
    return (extra or {}).get("name")


def _loader() -> type:
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader  # type: ignore[import-not-found, import-untyped, unused-ignore]

    from tensorlend._weights_torch import load_file, load_weights

    class TensorlendLoader(DefaultModelLoader):  # type: ignore[misc, unused-ignore]
        """Copies the weights from lent memory into the model. With a name it reads no file. Without a name, the first engine of
        the machine reads the files into lent memory.
        """

        def __init__(self, load_config: Any) -> None:
            extra = dict(load_config.model_loader_extra_config or {})
            self._name = extra.pop("name", None)
            self._connection = extra.pop("address", None), extra.pop("namespace", None)
            super().__init__(dataclasses.replace(load_config, load_format="safetensors", model_loader_extra_config=extra))

        def download_model(self, model_config: Any) -> None:
            """Downloads the files, unless the weights have a name."""
            if self._name is None:
                super().download_model(model_config)

        def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
            """Yields the name and the tensor of each weight."""
            self.counter_before_loading_weights = time.perf_counter()
            if self._name is None:
                yield from super().get_all_weights(model_config, model)
            else:
                with self._client() as client:
                    yield from load_weights(self._name, client=client).items()

        def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, torch.Tensor]]:
            _, files, _, _ = self._prepare_weights(source.model_or_path, source.subfolder, source.revision, False, source.allow_patterns_overrides)
            with self._client() as client:
                for file in files:
                    for name, tensor in load_file(file, client=client).items():
                        yield source.prefix + name, tensor

        def _client(self) -> _native.Client:
            address, namespace = self._connection
            return _native.connect(address, namespace=namespace, label="vllm weights")

    return TensorlendLoader
