"""A KV cache in lent memory, for inference engines of any framework. See docs/how-to/kv-cache.md.

An engine computes keys and values for each token of a prompt. `BlockStore` lends them in blocks of tokens, under the hash of
the tokens up to the end of the block. Every engine of the machine can load these blocks instead of computing them again, also
after the engine that computed them has ended.
"""

from tensorlend.kvcache.counters import Counters, GroupBytes, Summary, summary
from tensorlend.kvcache.identity import Identity
from tensorlend.kvcache.store import BlockStore

__all__ = ["BlockStore", "Counters", "GroupBytes", "Identity", "Summary", "summary"]
