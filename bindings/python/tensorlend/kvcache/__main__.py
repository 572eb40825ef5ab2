"""Prints the lent blocks of a namespace: `python -m tensorlend.kvcache`."""

import argparse

from tensorlend._html import size_text
from tensorlend._native import connect
from tensorlend.kvcache.counters import Summary, summary


def _text(found: Summary) -> str:
    counters = found.counters
    lines = [
        f"hit rate {counters.hit_rate():.3f}: {counters.hits} of {counters.queries} blocks, in reports of {found.stores} stores",
        f"loaded {size_text(counters.loaded_bytes)}, saved {size_text(counters.saved_bytes)}, evicted {size_text(counters.evicted_bytes)}",
        f"lost {counters.lost}, refused {counters.refused}, errors {counters.errors}",
    ]
    for name, group in sorted(found.groups.items(), key=lambda entry: -entry[1].bytes):
        lines.append(f"{size_text(group.bytes):>12}  {group.blocks:>8} blocks  {group.model or '?'}  {group.dtype}  {name}")
    return "\n".join(lines)


def main() -> None:
    """Prints bytes by model, the hit rate and evictions."""
    parser = argparse.ArgumentParser(prog="python -m tensorlend.kvcache", description=main.__doc__)
    parser.add_argument("--address", help="the daemon's socket; by default as in tensorlend.connect")
    parser.add_argument("--namespace", help="the namespace; by default this user's own")
    parser.add_argument("--prometheus", action="store_true", help="print metrics as Prometheus reads them")
    arguments = parser.parse_args()
    with connect(arguments.address, namespace=arguments.namespace) as client:
        found = summary(client)
    print(found.prometheus() if arguments.prometheus else _text(found), end="" if arguments.prometheus else "\n")


main()
