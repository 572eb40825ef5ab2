"""What the connector of vLLM plans for each step, without vLLM."""

import numpy as np
import pytest
from kv_engine import prompt

from tensorlend.kvcache import Identity
from tensorlend._vllm.options import Options, check_groups, identity_of, rank_of, ranks_of, sized
from tensorlend._vllm.plan import Load, Planner, Poison, Save, Step

SIZE = 4
IDENTITY = Identity("m", "float16", SIZE)
TOKENS = prompt(1, 40)
KEYS = IDENTITY.keys(TOKENS, "s")


@pytest.fixture
def planner():
    return Planner(IDENTITY)


def started(planner, pages, tokens=TOKENS):
    planner.loadable("r", tokens, "s")
    planner.place("r", pages)


def step(planner, computed, end, tokens=TOKENS):
    result = Step()
    planner.step("r", tokens, computed, end, result)
    return result


def saves(result):
    return [(save.pages, save.begun, save.first, save.keys) for save in result.saves]


def test_the_last_token_is_always_computed(planner):
    assert planner.loadable("r", TOKENS[:9], "s") == KEYS[:2]
    assert planner.loadable("r", TOKENS[:9], "s") == KEYS[:2]
    assert Planner(IDENTITY).loadable("r", TOKENS[:8], "s") == KEYS[:1]
    assert Planner(IDENTITY).loadable("r", TOKENS[:4], "s") == []
    assert Planner(IDENTITY).loadable("r", TOKENS[:9], "t") != KEYS[:2]


def test_a_prompt_in_one_step(planner):
    started(planner, [7, 3, 5], TOKENS[:10])
    result = step(planner, 0, 10, TOKENS[:10])
    assert result.loads == [] and saves(result) == [([7, 3, 5], 0, 0, KEYS[:2])]


def test_a_prompt_in_chunks_saves_each_block_in_the_step_that_completes_it(planner):
    started(planner, [7, 3], TOKENS[:11])
    assert saves(step(planner, 0, 6, TOKENS[:11])) == [([7, 3], 0, 0, KEYS[:1])]
    planner.extend("r", [5])
    assert saves(step(planner, 6, 11, TOKENS[:11])) == [([7, 3, 5], 2, 1, KEYS[1:2])]
    # The first generated token completes the third block.
    assert saves(step(planner, 11, 12, TOKENS[:12])) == [([7, 3, 5], 3, 2, KEYS[2:3])]


def test_loaded_blocks_are_not_saved(planner):
    started(planner, [7, 3, 5, 9], TOKENS[:14])
    planner.load("r", 1, 2)
    result = step(planner, 12, 14, TOKENS[:14])
    assert result.loads == [Load(KEYS[1:3], [3, 5])]
    assert saves(result) == [([7, 3, 5, 9], 3, 3, [])]
    assert step(planner, 14, 15, TOKENS[:15]).loads == []


def test_tokens_that_the_scheduler_does_not_know_yet_are_saved_later(planner):
    """With asynchronous scheduling."""
    started(planner, [7, 3], TOKENS[:7])
    assert saves(step(planner, 0, 7, TOKENS[:7])) == [([7, 3], 0, 0, KEYS[:1])]
    assert saves(step(planner, 7, 8, TOKENS[:7])) == []
    planner.extend("r", [5])
    assert saves(step(planner, 8, 9, TOKENS[:8])) == [([7, 3, 5], 2, 1, KEYS[1:2])]


def test_a_failed_load_is_computed_and_saved_again(planner):
    started(planner, [7, 3, 5], TOKENS[:12])
    planner.load("r", 0, 2)
    assert step(planner, 8, 12, TOKENS[:12]).loads == [Load(KEYS[:2], [7, 3])]
    assert saves(step(planner, 4, 12, TOKENS[:12])) == [([7, 3, 5], 1, 1, KEYS[1:3])]


def test_a_preempted_request_begins_again(planner):
    started(planner, [7, 3], TOKENS[:8])
    step(planner, 0, 8, TOKENS[:8])
    planner.place("r", [1, 2, 4])
    assert saves(step(planner, 0, 9, TOKENS[:9])) == [([1, 2, 4], 0, 0, KEYS[:2])]


def test_requests_that_are_not_tracked_have_no_plan(planner):
    planner.place("r", [1])
    planner.extend("r", [2])
    assert step(planner, 0, 8) == Step()
    started(planner, [1, 2])
    planner.end("r")
    assert step(planner, 0, 8) == Step()
    started(planner, [1, 2])
    planner.clear()
    assert step(planner, 0, 8) == Step()


def save(pages, begun):
    return Save(pages, begun, begun, [], 0)


def test_what_is_computed_from_a_failed_page_is_not_lent():
    poison = Poison()
    assert not poison.spoils(save([1, 2, 3], 2))
    poison.add(2)
    assert poison.spoils(save([1, 2, 3], 2)), "page 3 was computed from page 2"
    assert poison.spoils(save([9, 3, 4], 2)), "another request shares page 3"
    assert not poison.spoils(save([1, 8], 1))
    # The engine computes page 2 again, and all after it.
    assert not poison.spoils(save([1, 2, 3], 1))
    assert not poison.spoils(save([1, 2, 3, 4], 3))


def test_a_failed_page_that_another_request_writes_is_sound_again():
    poison = Poison()
    poison.add(2)
    assert not poison.spoils(save([2, 5], 0))
    poison.add(2)
    poison.clear([2])
    assert not poison.spoils(save([2, 5], 1))


@pytest.mark.parametrize("seed", range(20))
def test_pages_that_are_saved_are_what_was_computed(seed):
    """An engine with chunks, failed loads and late tokens, whose pages hold the number of the block, or garbage."""
    draw, planner, poison = np.random.default_rng(seed), Planner(IDENTITY), Poison()
    for _ in range(20):
        table = draw.permutation(50)[:10].tolist()
        content: dict[int, int | None] = {}
        own = int(draw.integers(0, 4))
        content.update({page: index for index, page in enumerate(table[:own])})
        matched = int(draw.integers(0, 5))
        planner.loadable("r", TOKENS, "s")
        planner.place("r", table)
        planner.load("r", own, matched)
        computed = (own + matched) * SIZE
        # Steps in progress do not know of a failure. The engine learns of it one step later.
        failure, late = None, 0
        while computed < 40:
            end = min(40, computed + int(draw.integers(1, 10)))
            planned = step(planner, computed, end)
            for load in planned.loads:
                gone = int(draw.integers(0, 8))
                for number, (key, page) in enumerate(zip(load.keys, load.pages, strict=True)):
                    assert key == KEYS[own + number]
                    if number < gone:
                        content[page] = own + number
                        poison.clear([page])
                    else:
                        content[page] = None
                        poison.add(page)
                        failure = own + number if failure is None else min(failure, own + number)
            for index in range(computed // SIZE, -(-end // SIZE)):
                sound = all(content.get(page) == number for number, page in enumerate(table[:index]))
                begins = computed <= index * SIZE
                content[table[index]] = index if sound and (begins or content.get(table[index]) == index) else None
            for one in planned.saves:
                if not poison.spoils(one):
                    for index, key in enumerate(one.keys, one.first):
                        assert key == KEYS[index] and content[one.pages[index]] == index
            computed = end
            if failure is not None and (late := late + 1) > 1:
                computed, failure, late = failure * SIZE, None, 0
        if failure is None:
            assert all(content[page] == index for index, page in enumerate(table))


def test_sizes():
    assert (sized(5), sized("12"), sized("8 GiB"), sized("1.5KiB")) == (5, 12, 8 << 30, 1536)
    for wrong in ("8 GB", "", None, "-1"):
        with pytest.raises(ValueError, match="8 GiB"):
            sized(wrong)


def test_options_are_checked():
    with pytest.raises(ValueError, match="'bytes'.*bytes_max"):
        Options({"bytes": 1})


def configuration(folder, **changes):
    from types import SimpleNamespace as Some

    model = Some(model=str(folder), dtype="torch.float32", revision=None, quantization=None, hf_config=Some(to_json_string=lambda **_: "{}"))
    parallel = Some(tensor_parallel_size=2, pipeline_parallel_size=2, rank=3, decode_context_parallel_size=1)
    config = Some(
        model_config=model,
        cache_config=Some(cache_dtype="auto", block_size=16),
        parallel_config=parallel,
        load_config=Some(load_format="auto"),
        device_config=Some(device_type="cpu"),
    )
    for path, value in changes.items():
        part, name = path.split("__")
        setattr(getattr(config, part), name, value)
    return config


def test_whatever_changes_a_block_changes_the_identity(tmp_path):
    options = Options({})

    def tag(version="1", options=options, **changes):
        return identity_of(configuration(tmp_path, **changes), version, options).tag()

    (tmp_path / "model.safetensors").write_bytes(b"12")
    first = tag()
    assert tag() == first
    others = [
        tag("2"),
        tag(options=Options({"weights_version": "2"})),
        tag(model_config__revision="x"),
        tag(model_config__dtype="torch.float16"),
        tag(cache_config__cache_dtype="fp8"),
        tag(cache_config__block_size=32),
        tag(parallel_config__tensor_parallel_size=4),
        tag(device_config__device_type="cuda"),
    ]
    (tmp_path / "model.safetensors").write_bytes(b"123")
    others.append(tag())
    named = {"load_config__load_format": "tensorlend", "load_config__model_loader_extra_config": {"name": "llama"}}
    with pytest.raises(ValueError, match="set weights_version"):
        tag(**named)
    others.append(tag(options=Options({"weights_version": "3"}), **named))
    assert len({first, *others}) == 1 + len(others)


def test_each_rank_has_blocks_of_its_own(tmp_path):
    config = configuration(tmp_path)
    assert ranks_of(config) == ["0x0", "0x1", "1x0", "1x1"] and rank_of(config) == "1x1"
    with pytest.raises(ValueError, match="decode_context_parallel_size is 2"):
        ranks_of(configuration(tmp_path, parallel_config__decode_context_parallel_size=2))


def test_other_caches_than_full_attention_are_refused(tmp_path):
    def group(name, *bases):
        from types import SimpleNamespace as Some

        return Some(kv_cache_spec=type(name, bases, {})())

    full = type("FullAttentionSpec", (), {})
    check_groups([group("MLAAttentionSpec", full)])
    with pytest.raises(ValueError, match="2 KV cache groups: set --disable"):
        check_groups([group("A", full), group("B", full)])
    for name in ("SlidingWindowSpec", "RSWASpec"):
        with pytest.raises(ValueError, match=name):
            check_groups([group(name, full)])
    with pytest.raises(ValueError, match="calculate_kv_scales"):
        identity_of(configuration(tmp_path, cache_config__calculate_kv_scales=True), "1", Options({}))
