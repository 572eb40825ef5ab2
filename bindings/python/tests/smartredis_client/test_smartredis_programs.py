"""Programs over ``tensorlend.smartredis``: their errors, their log, and how they run unchanged."""

import functools
import os
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from programs import run, succeeds

from .numbered import SCALAR_TYPES, SSDB, TENSOR_TYPES, each_raises

import tensorlend
from tensorlend.smartredis import (
    Client,
    Dataset,
    LLInfo,
    LLQuiet,
    LogContext,
    SRObject,
    log_data,
)
from tensorlend.smartredis.error import RedisReplyError
from tensorlend.smartredis.util import Dtypes


def test_an_error_says_which_call_failed_and_why(client: Client) -> None:
    with pytest.raises(RedisReplyError, match=r"^Client\.get_tensor: .*absent") as caught:
        client.get_tensor("absent")
    assert isinstance(caught.value.__cause__, tensorlend.NotFoundError)
    with pytest.raises(RedisReplyError, match=r"^Client\.rename_list: .*absent"):
        client.rename_list("absent", "b")
    with pytest.raises(RedisReplyError, match=r"^Dataset\.get_tensor: "):
        Dataset("d").get_tensor("absent")


def test_the_log(broker: tensorlend.Embedded, tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = """
        from tensorlend.smartredis import *
        log_data("function", LLQuiet, "quiet")
        log_data("function", LLDebug, "not written")
        for thing in (Client(None, "client"), Client(None, "second"), Dataset("dataset"), LogContext("context")):
            thing.log_warning(LLInfo, "told")
        SRObject("object").log_error(LLInfo, "failed")
    """
    environment = {**os.environ, "SR_LOG_FILE": str(log), "SR_LOG_LEVEL": "info"}
    succeeds("-c", textwrap.dedent(program), env=environment)
    lines = [re.sub(r"@\d\d-\d\d-\d\d:", ":", line) for line in log.read_text().splitlines()]
    assert lines[0] == "function:quiet"
    assert lines[1].startswith(f"client:SSDB names {SSDB}") and str(broker.address) in lines[1]
    warned = [f"{context}:WARNING: told" for context in ("client", "second", "dataset", "context")]
    assert lines[2:] == [*warned, "object:ERROR: failed"]
    environment["SR_LOG_LEVEL"] = "loud"
    failed = run("-c", textwrap.dedent(program), env=environment)
    assert failed.returncode == 1 and "RedisRuntimeError" in failed.stderr and "loud" in failed.stderr


def test_the_log_refuses_what_it_cannot_write() -> None:
    each_raises(
        TypeError,
        [
            lambda: log_data("context", 2, "text"),  # type: ignore[arg-type]
            lambda: LogContext("context").log_data(LLInfo, 5),  # type: ignore[arg-type]
            lambda: SRObject(5),  # type: ignore[arg-type]
        ],
    )
    assert str(LLQuiet) == "SRLoggingLevel.LLQuiet"


def test_names_of_types() -> None:
    for dtype in TENSOR_TYPES:
        assert Dtypes.from_string(Dtypes.tensor_from_numpy(np.zeros(1, dtype))) == np.dtype(dtype).type
    for dtype in SCALAR_TYPES:
        assert Dtypes.from_string(Dtypes.metadata_from_numpy(np.zeros(1, dtype))) == np.dtype(dtype).type
    with pytest.raises(TypeError):
        Dtypes.from_string("HALF")


PROGRAM = """
    import multiprocessing, sys
    import numpy as np
    from smartredis import Client, ConfigOptions, Dataset
    from smartredis.dataset_utils import DatasetConverter
    from smartredis.error import RedisReplyError
    from smartredis.util import Dtypes
    import smartredis.client

    def square(number):
        client = smartredis.client.Client()
        client.put_tensor(f"square {number}", client.get_tensor("numbers")[number : number + 1] ** 2)

    if __name__ == "__main__":
        client = Client(None, logger_name="main")
        client.put_tensor("numbers", np.arange(4))
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            pool.map(square, range(4))
        print(sys.argv[1:], [int(client.get_tensor(f"square {number}")[0]) for number in range(4)])
"""


@pytest.mark.parametrize("how", ["program", "module"])
def test_a_program_runs_unchanged_with_its_processes(how: str, client: Client, tmp_path: Path) -> None:
    (tmp_path / "squares.py").write_text(textwrap.dedent(PROGRAM))
    program = [tmp_path / "squares.py"] if how == "program" else ["-m", "squares"]
    environment = {**os.environ, "SR_LOG_LEVEL": "quiet"}
    ran = succeeds("-m", "tensorlend.smartredis", *program, "one", "-m", "two", env=environment, cwd=tmp_path)
    assert ran.stdout.splitlines()[-1] == "['one', '-m', 'two'] [0, 1, 4, 9]"


def test_a_forked_child_has_what_its_parent_got(client: Client) -> None:
    program = """
        import os
        import numpy as np
        from tensorlend.smartredis import Client, Dataset

        client = Client()
        data = Dataset("data")
        data.add_tensor("ones", np.ones(1 << 20))
        client.put_dataset(data)
        client.put_tensor("twos", np.full(1 << 20, 2.0))
        ones, twos = client.get_dataset("data"), client.get_tensor("twos")
        if os.fork() == 0:
            twos += ones.get_tensor("ones")
            client.put_tensor("threes", twos)
            client.append_to_list("list", data)
            os._exit(0)
        assert os.wait()[1] == 0
        assert (client.get_tensor("threes") == 3).all() and (twos == 2).all()
        assert client.get_list_length("list") == 1
    """
    succeeds("-c", textwrap.dedent(program))


def test_the_runner_passes_on_how_a_program_ends(tmp_path: Path) -> None:
    client = functools.partial(run, "-m", "tensorlend.smartredis", cwd=tmp_path)
    (tmp_path / "ends.py").write_text("import sys; sys.exit(7)")
    assert client("ends.py").returncode == 7
    assert client("absent.py").returncode == 1
    assert "usage" in client().stderr and client("-x").returncode == 1
    assert "usage" in client("--help").stdout
    assert client("-c", "from smartredis import Client; print(Client.__module__)").stdout == "tensorlend.smartredis.client\n"


def test_the_original_tests_are_counted_by_language(tmp_path: Path) -> None:
    script = Path(__file__).parents[4] / "scripts/smartredis-conformance"
    (tmp_path / "tests/python").mkdir(parents=True)
    program = """
        import pytest
        from smartredis import Client
        def test_passes():
            Client()
        def test_refused():
            Client().set_script("script", "text")
        @pytest.mark.skip
        def test_skipped():
            pass
        def test_fails():
            assert False
    """
    (tmp_path / "tests/python/test_some.py").write_text(textwrap.dedent(program))
    environment = {**os.environ, "PKG_CONFIG_LIBDIR": str(tmp_path), "PKG_CONFIG_PATH": ""}
    counted = run(script, tmp_path, env=environment)
    assert counted.returncode == 1, counted.stderr
    rows = [line.split() for line in counted.stdout.splitlines()]
    assert "programs passed failed refused allowed internal skipped".split() in rows
    assert "Python 1 1 1 0 0 1".split() in rows, counted.stdout
    assert "failed: Python test_some::test_fails" in counted.stdout
    assert "not run: C++, C, Fortran: no PREFIX" in counted.stdout
