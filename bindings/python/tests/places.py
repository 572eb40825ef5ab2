"""Where an array lies, and whether the memory of a tensor is reused: by a new draft of its length, or given back to the broker with its segment."""

import numpy as np

import tensorlend

NBYTES = 100_000


def address(array: object) -> int:
    return np.asarray(array).__array_interface__["data"][0]


def is_in(lease: tensorlend.Lease, at: int) -> bool:
    first = address(lease)
    return first <= at < first + lease.nbytes


def mapped(at: int) -> str | None:
    """Which file this process has mapped there: device and inode."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, _, device, inode, *_ = line.split()
            first, last = (int(end, 16) for end in span.split("-"))
            if first <= at < last:
                return f"{device} {inode}"
    return None


class Place:
    """The memory of one draft."""

    def __init__(self, client: tensorlend.Client) -> None:
        self.client = client
        self.draft = client.create(NBYTES, "uint8")
        self.address = address(self.draft)
        self.segment = mapped(self.address)

    def _is_reused(self, count: int) -> bool:
        many = [self.client.create(NBYTES, "uint8") for _ in range(count)]
        found = any(abs(address(draft) - self.address) < NBYTES for draft in many)
        for draft in many:
            # Publishes the tensors as values, so that memory is retired and reclaimed.
            draft.publish("place/other")
        return found or mapped(self.address) != self.segment

    def stays(self) -> bool:
        """Every slot that can be reused is, several times over."""
        return not any(self._is_reused(100) for _ in range(5))

    def comes_back(self) -> bool:
        """More drafts at once than there can be free slots besides: what was freed first is reused last."""
        return any(self._is_reused(100 + 10 * more) for more in range(30))
