"""Two engines with one KV cache. The first computes a prompt and is killed; the second loads what the first one has computed.

Start a daemon (`tensorlendd &`), then run `python kv_cache.py`. The engine is a small transformer in numpy with a paged KV cache. With vLLM you need
no program of your own: docs/how-to/kv-cache.md.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import numpy as np

import tensorlend
from tensorlend.kvcache import BlockStore, Identity

LAYERS, WIDTH, WORDS, BLOCK = 2, 32, 101, 16
IDENTITY = Identity("small", "float32", BLOCK, {"seed": 7})
#: Bytes of one block: keys and values of all layers.
NBYTES = LAYERS * 2 * BLOCK * WIDTH * 4


class Engine:
    """Computes prompts block by block, so that loaded and computed blocks go through the same arithmetic."""

    def __init__(self, store: BlockStore | None = None, blocks: int = 256):
        draw = np.random.default_rng(7)
        self.embedding, self.output = (draw.normal(0, 1, (WORDS, WIDTH)).astype(np.float32) for _ in range(2))
        self.weights = draw.normal(0, WIDTH**-0.5, (LAYERS, 4, WIDTH, WIDTH)).astype(np.float32)
        self.store = store
        self.pages = np.zeros((blocks, LAYERS, 2, BLOCK, WIDTH), np.float32)
        #: Number of tokens that this engine has computed.
        self.computed = 0

    def forward(self, tokens: list[int], start: int) -> int:
        """Computes some tokens, of which `start` are in the pages already; returns the next token."""
        self.computed += len(tokens)
        end = start + len(tokens)
        pages = np.arange(start, end) // BLOCK, np.arange(start, end) % BLOCK
        allowed = np.arange(end)[None, :] <= np.arange(start, end)[:, None]
        x = self.embedding[tokens]
        for layer, (query, key, value, mix) in enumerate(self.weights):
            self.pages[pages[0], layer, 0, pages[1]] = x @ key
            self.pages[pages[0], layer, 1, pages[1]] = x @ value
            keys, values = (self.pages[:, layer, half].reshape(-1, WIDTH)[:end] for half in range(2))
            scores = np.where(allowed, (x @ query) @ keys.T * WIDTH**-0.5, -np.inf)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            x = x + np.tanh((shares / shares.sum(axis=1, keepdims=True)) @ values @ mix)
        return int(np.argmax(self.output @ x[-1]))

    def save(self, keys: list[str], index: int, begun_ns: int) -> None:
        if self.store is not None:
            page = self.pages[index].reshape(-1).view(np.uint8)
            self.store.save(keys[index], NBYTES, lambda into: into.__setitem__(slice(None), page), depth=index, begun_ns=begun_ns)

    def load(self, keys: list[str]) -> int:
        """Loads the leading blocks that are lent; returns their number."""
        if self.store is None:
            return 0
        matched = self.store.match(keys)
        self.store.note(keys, matched)
        for index, key in enumerate(keys[:matched]):
            lease = self.store.load(key, NBYTES)
            if lease is None:
                return index
            with lease:
                self.pages[index].reshape(-1).view(np.uint8)[:] = lease.numpy()
        return matched

    def generate(self, prompt: list[int], count: int) -> list[int]:
        """Returns the next `count` tokens."""
        tokens, begun_ns = list(prompt), time.time_ns()
        # The engine always computes the last token, because it needs the next one.
        done = self.load(IDENTITY.keys(prompt[:-1])) * BLOCK
        while len(tokens) < len(prompt) + count:
            end = min(len(tokens), (done // BLOCK + 1) * BLOCK)
            following = self.forward(tokens[done:end], done)
            done = end
            if done % BLOCK == 0:
                self.save(IDENTITY.keys(tokens[:done]), done // BLOCK - 1, begun_ns)
            if done == len(tokens):
                tokens.append(following)
        return tokens[len(prompt) :]


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, WORDS, length).tolist()


def serve(name: str, tokens: list[int], ends_by_a_signal: bool) -> None:
    """An engine in a process of its own."""
    store = BlockStore(tensorlend.connect(), IDENTITY, bytes_max=1 << 30)
    engine = Engine(store)
    answer = engine.generate(tokens, 8)
    print(f"{name}: {answer}, computed {engine.computed} tokens", flush=True)
    if ends_by_a_signal:
        os.kill(os.getpid(), signal.SIGKILL)
    store.close()


def main() -> None:
    """Runs the two engines."""
    tokens = prompt(1, 100)
    for name, ends_by_a_signal in (("first", True), ("second", False)):
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(name, tokens, ends_by_a_signal))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
