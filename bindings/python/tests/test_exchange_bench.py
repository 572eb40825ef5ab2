"""The benchmark of exchanges: all contenders move the same bytes."""

import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "benches"))

import exchange

NBYTES = 16 << 10


@pytest.mark.parametrize("kind", [kind for kind in exchange.CONTENDERS if kind is not exchange.Ray], ids=lambda kind: kind.name)
def test_the_producer_writes_every_element_in_each_round(kind):
    try:
        contender = kind(NBYTES)
    except ImportError as error:
        pytest.skip(str(error))
    get = contender.consumer()
    for number in range(1, 6):
        contender.put(number)
        array = np.asarray(get())
        assert array.nbytes == NBYTES and (array == number).all()
        exchange.check(array, number)
        with pytest.raises(AssertionError, match=f"round {number + 1} has an element of round {number}"):
            exchange.check(array, number + 1)
        del array
    contender.close()


def test_the_consumer_reads_every_element():
    for at in (0, 1, 2500, 4095):
        array = np.full(4096, 7, np.float32)
        array[at] = 6
        with pytest.raises(AssertionError):
            exchange.check(array, 7)
