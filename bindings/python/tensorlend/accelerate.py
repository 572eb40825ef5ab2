"""Makes accelerate, and so transformers' `Trainer`, load batches through lent memory: see docs/how-to/trainers.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accelerate.data_loader import DataLoaderAdapter  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch.utils.data import DataLoader

from tensorlend._default import default_client
from tensorlend._refs import where
from tensorlend.loader.torch_loader import SharedLoader

if TYPE_CHECKING:
    from tensorlend._native import Client
    from tensorlend._types import Mode

__all__ = ["install", "uninstall"]


@dataclass(frozen=True)
class _Settings:
    address: tuple[str, ...]
    namespace: str | None
    mode: Mode


_settings: _Settings | None = None
_usual: Any = DataLoaderAdapter.__init__


def install(*, client: Client | None = None, mode: Mode = "cow") -> None:
    """Makes `Accelerator.prepare` turn loaders with workers into `SharedLoader`s.

    Workers then write batches into shared memory, and the trainer's tensors view them. Loaders
    without workers, stateful loaders and DataPipes stay as they are. In a program with several
    processes, each process must call this function.

    Parameters
    ----------
    client : Client or None, default None
        A client of the daemon that holds the batches. None is a client of the running daemon, or of
        a daemon in this process.
    mode : {"read", "cow"}, default "cow"
        "cow": the program may write to its batches. "read" is faster, and a write in place ends the process.

    Raises
    ------
    DisconnectedError
        The daemon that the environment names cannot be reached.
    """
    global _settings
    if mode not in ("read", "cow"):
        raise ValueError(f'mode={mode!r}: give "read" or "cow"')
    _settings = _Settings(*where(client or default_client()), mode)
    DataLoaderAdapter.__init__ = _init


def uninstall() -> None:
    """Undoes `install`. Loaders that were prepared before stay as they are."""
    global _settings
    _settings = None
    DataLoaderAdapter.__init__ = _usual


def _init(
    adapter: Any, dataset: Any, use_stateful_dataloader: bool = False, batch_sampler: Any = None, **options: Any
) -> None:
    _usual(adapter, dataset, use_stateful_dataloader=use_stateful_dataloader, batch_sampler=batch_sampler, **options)
    by, usual = _settings, adapter.base_dataloader
    if by is None or type(usual) is not DataLoader or usual.num_workers == 0 or options.pop("pin_memory_device", ""):
        return
    try:
        adapter.base_dataloader = SharedLoader(
            dataset, batch_sampler=batch_sampler, address=by.address, namespace=by.namespace, mode=by.mode, **options
        )
    except (TypeError, ValueError):
        # The loader is a DataPipe, or has an option that a newer torch has added.
        return
