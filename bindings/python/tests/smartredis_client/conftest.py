"""A broker for each file of tests, which programs find as they find any other."""

from collections.abc import Iterator

import pytest
from .numbered import SSDB

import tensorlend
from tensorlend.smartredis import Client


@pytest.fixture(scope="module")
def broker() -> Iterator[tensorlend.Embedded]:
    with tensorlend.embedded() as broker:
        yield broker


@pytest.fixture(autouse=True)
def environment(broker: tensorlend.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSKEYIN", "SSKEYOUT", "SR_CONN_TIMEOUT", "SR_CONN_INTERVAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TENSORLEND_SOCKET", str(broker.address))
    monkeypatch.setenv("SSDB", SSDB)
    monkeypatch.setenv("SR_DB_TYPE", "Standalone")


@pytest.fixture
def client() -> Client:
    client = Client()
    client.flush_db([SSDB])
    return client


@pytest.fixture
def native(broker: tensorlend.Embedded) -> Iterator[tensorlend.Client]:
    with broker.connect() as native:
        yield native
