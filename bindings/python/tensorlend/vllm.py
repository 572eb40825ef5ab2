"""A connector of vLLM's KV cache to lent memory. See docs/how-to/kv-cache.md.

vLLM loads it by `kv_connector="TensorlendConnector"` and `kv_connector_module_path="tensorlend.vllm"`.

vLLM makes one object of the class for its scheduler and one for each worker. The scheduler's object
finds lent blocks for each new request and plans the loads and saves of a step. It sends the plan to
the workers with the step. A worker loads before the step's computation and saves after it. Loads
are synchronous. The copy of a block takes some 100 us for each MiB.

If a block is evicted between the scheduler's look-up and the worker's load, the worker reports the page, and vLLM computes the
rest of the request again (`kv_load_failure_policy="recompute"`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import vllm  # type: ignore[import-not-found, import-untyped, unused-ignore]
from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from tensorlend._vllm.options import Options, block_bytes, check_groups, identity_of, rank_of, ranks_of
from tensorlend._vllm.pace import Pace
from tensorlend._vllm.pages import Pages
from tensorlend._vllm.peers import WAIT_PART, Peers
from tensorlend._vllm.plan import Planner, Poison, Step
from tensorlend.kvcache import BlockStore

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from vllm.v1.core.sched.output import SchedulerOutput  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from vllm.v1.kv_cache_interface import KVCacheConfig  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from vllm.v1.request import Request  # type: ignore[import-not-found, import-untyped, unused-ignore]

__all__ = ["TensorlendConnector"]

#: Number of blocks that a prompt must compute to count for the engine's pace. Shorter prompts measure other things.
PACE_BLOCKS = 4


@dataclass
class StepMetadata(KVConnectorMetadata):
    """The plan of one step."""

    step: Step = field(default_factory=Step)


class TensorlendConnector(KVConnectorBase_V1):  # type: ignore[misc,unused-ignore]
    """Lends the blocks of vLLM's KV cache to all engines of the machine."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        transfer = self._kv_transfer_config
        if transfer.kv_load_failure_policy != "recompute":
            raise ValueError('set kv_load_failure_policy="recompute": another engine may evict a block before it is loaded')
        check_groups(kv_cache_config.kv_cache_groups)
        options = Options(transfer.kv_connector_extra_config)
        identity = identity_of(vllm_config, vllm.__version__, options)
        ranks = ranks_of(vllm_config)
        self._saves, self._loads = transfer.is_kv_producer, transfer.is_kv_consumer
        self._half: _Scheduler | _Worker
        if role is KVConnectorRole.SCHEDULER:
            client = options.connect("scheduler")

            def stores() -> list[BlockStore]:
                return [options.store(client, identity, rank) for rank in ranks]

            peers = None
            if options.peers and self._loads:
                nbytes = block_bytes(vllm_config, kv_cache_config.kv_cache_groups[0])
                peers = Peers(client, stores(), options.peers, nbytes)
            self._half = _Scheduler(stores(), Planner(identity), peers, options.peer_wait_s)
        else:
            client = options.connect("worker")
            self._half = _Worker(options.store(client, identity, rank_of(vllm_config)), kv_cache_config.num_blocks)

    @property
    def requires_kv_delivery(self) -> bool:
        """Returns False, because a block that is not saved is only computed again."""
        return False

    @property
    def _scheduler(self) -> _Scheduler:
        assert isinstance(self._half, _Scheduler)
        return self._half

    @property
    def _worker(self) -> _Worker:
        assert isinstance(self._half, _Worker)
        return self._half

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Returns the number of tokens after the computed ones whose blocks are lent, and that loads are synchronous.

        The number is None while the request waits for blocks of other nodes. vLLM then asks again in its next step.
        """
        return (self._scheduler.matched(request, num_computed_tokens) if self._loads else 0), False

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        """Plans the load of the tokens that the scheduler accepted."""
        if self._loads:
            self._scheduler.accepted(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepMetadata:
        """Returns the plan of a step for the workers."""
        step = self._scheduler.step(scheduler_output)
        if not self._saves:
            step.saves = []
        return StepMetadata(step)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Forgets a request. Its pages can be freed at once, because saves are synchronous."""
        self._scheduler.finished(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        """Stops sharing older blocks, because the weights may have changed."""
        if isinstance(self._half, _Scheduler):
            self._half.reset()
        return True

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Takes the tensors of pages."""
        self._worker.register(kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads the blocks of the step into pages."""
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)
        self._worker.load(metadata.step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing, because all layers were loaded before the computation."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Does nothing, because a block has all layers, and is saved after the last one."""

    def wait_for_save(self) -> None:
        """Lends the blocks that the step has completed."""
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)
        self._worker.save(metadata.step)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Returns the pages whose blocks could not be loaded in this step."""
        return self._worker.take_failed()

    def shutdown(self) -> None:
        """Reports the counters a last time. The blocks stay lent."""
        self._half.close()


class _Scheduler:
    """The half in the scheduler's process."""

    def __init__(self, stores: list[BlockStore], planner: Planner, peers: Peers | None, peer_wait_s: float) -> None:
        #: The stores of all ranks. A block is found if each rank has lent its part.
        self._stores, self._planner = stores, planner
        self._peers, self._peer_wait_s = peers, peer_wait_s
        self._size = stores[0].identity.block_tokens
        self._pace = Pace(PACE_BLOCKS * self._size)
        #: Whether the last step computed nothing.
        self._is_idle = True
        self._salt = ""
        #: Requests that share blocks, with the number of their blocks in vLLM's own cache.
        self._requests: dict[str, Request] = {}
        self._own: dict[str, int] = {}

    def matched(self, request: Request, computed: int) -> int | None:
        """Returns the number of lent tokens after the computed ones. Returns None while the request waits for other nodes."""
        if not _is_shared(request):
            return 0
        own = computed // self._size
        keys = self._loadable(request)[own:]
        self._own[request.request_id] = own
        lent = self._lent(keys)
        # After a reset no other node has these keys.
        if self._peers is not None and not self._salt and lent < len(keys):
            missing, depth, wait_s = keys[lent:], own + lent, self._peer_wait_s
            if self._pace.token_s is not None:
                wait_s = min(wait_s, WAIT_PART * self._pace.token_s * len(missing) * self._size)
            if self._peers.is_coming(request.request_id, missing, depth, wait_s, may_poll=self._is_idle):
                return None
            # Blocks may have come since the look-up.
            lent = self._lent(keys)
        return lent * self._size

    def _lent(self, keys: list[str]) -> int:
        """Returns the number of leading blocks that all ranks have lent."""
        for store in self._stores:
            keys = keys[: store.match(keys)]
        return len(keys)

    def accepted(self, request: Request, external: int) -> None:
        """Plans the load of this number of tokens, and tracks the request."""
        if not _is_shared(request):
            return
        keys, own, count = self._loadable(request), self._own.pop(request.request_id, 0), external // self._size
        self._requests[request.request_id] = request
        length = len(request.all_token_ids)
        self._pace.begin(request.request_id, length, length - (own + count) * self._size)
        self._planner.load(request.request_id, own, count)
        for store in self._stores:
            store.note(keys, count, own=own)

    def step(self, output: SchedulerOutput) -> Step:
        """Returns the plan of a step."""
        step, scheduled, cached = Step(), output.num_scheduled_tokens, output.scheduled_cached_reqs
        self._is_idle = not scheduled
        for new in output.scheduled_new_reqs:
            self._planner.place(new.req_id, new.block_ids[0])
            self._add(new.req_id, new.num_computed_tokens, scheduled, step)
        for name, pages, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
            if pages is not None:
                (self._planner.place if name in cached.resumed_req_ids else self._planner.extend)(name, pages[0])
            self._add(name, computed, scheduled, step)
        return step

    def _add(self, name: str, computed: int, scheduled: dict[str, int], step: Step) -> None:
        request = self._requests.get(name)
        if request is not None:
            self._pace.see(name, len(request.all_token_ids))
            self._planner.step(name, request.all_token_ids, computed, computed + scheduled.get(name, 0), step)

    def finished(self, request: str) -> None:
        """Forgets a request."""
        found = self._requests.pop(request, None)
        if found is not None:
            self._pace.see(request, len(found.all_token_ids))
        self._pace.end(request)
        if self._peers is not None:
            self._peers.end(request)
        self._own.pop(request, None)
        self._planner.end(request)

    def reset(self) -> None:
        """Gives all later requests keys that no other engine has. Running requests are no longer
        saved.
        """
        self._salt = os.urandom(8).hex()
        self._planner.clear()

    def close(self) -> None:
        """Reports the counters a last time."""
        if self._peers is not None:
            self._peers.close()
        for store in self._stores:
            store.close()

    def _loadable(self, request: Request) -> list[str]:
        salt = f"{self._salt}/{request.cache_salt or ''}"
        return self._planner.loadable(request.request_id, request.all_token_ids, salt)


def _is_shared(request: Request) -> bool:
    """Returns whether the tokens alone determine a request's blocks."""
    other = request.mm_features or request.lora_request is not None or request.prompt_embeds is not None
    return not other and not getattr(request, "resumable", False)


class _Worker:
    """The half in a worker's process."""

    def __init__(self, store: BlockStore, page_count: int) -> None:
        self._store, self._page_count = store, page_count
        self._pages: Pages | None = None
        self._poison = Poison()
        self._failed: set[int] = set()

    def register(self, layers: dict[str, torch.Tensor]) -> None:
        """Takes the tensors of pages."""
        self._pages = Pages(layers, self._page_count)

    def load(self, step: Step) -> None:
        """Loads blocks into pages. If a block no longer exists, vLLM computes the rest of its
        request again.
        """
        pages = self._pages
        assert pages is not None or not step.loads
        for load in step.loads:
            is_complete = True
            for key, page in zip(load.keys, load.pages, strict=True):
                lease = self._store.load(key, pages.nbytes) if is_complete else None
                is_complete = lease is not None
                if lease is not None:
                    with lease:
                        pages.write(page, lease)
                    self._poison.clear([page])
                else:
                    self._poison.add(page)
                    self._failed.add(page)

    def save(self, step: Step) -> None:
        """Lends the blocks that the step has completed."""
        pages = self._pages
        assert pages is not None or not step.saves
        for save in step.saves:
            if self._poison.spoils(save):
                continue
            for depth, key in enumerate(save.keys, save.first):
                read = partial(pages.read, save.pages[depth])
                self._store.save(key, pages.nbytes, read, depth=depth, begun_ns=save.begun_ns)

    def take_failed(self) -> set[int]:
        """Returns the pages that could not be loaded since the last call."""
        failed, self._failed = self._failed, set()
        return failed

    def close(self) -> None:
        """Reports the counters a last time."""
        self._store.close()
