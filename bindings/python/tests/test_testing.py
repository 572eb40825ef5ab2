"""The fixtures that `tensorlend.testing` gives to others' tests."""

import pytest

pytest_plugins = ["pytester"]

@pytest.fixture
def session(pytester):
    """Runs tests in a process of their own: a session's daemon would be this process's."""
    def run(source, *options):
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)

    return run


def test_a_daemon_and_clean_names_for_each_test(session):
    run = session(
        """
        import os, subprocess, sys
        import numpy as np, tensorlend

        def test_put(tensorlend_client, tensorlend_daemon):
            tensorlend_client.put("x", np.arange(3))
            tensorlend_client.append("l", np.arange(3))
            tensorlend_client.stream("s").close()
            assert os.environ["TENSORLEND_SOCKET"] == tensorlend_daemon.address
            assert tensorlend_client.get("x").numpy().tolist() == [0, 1, 2]

        def test_the_name_is_gone(tensorlend_client):
            assert "x" not in tensorlend_client
            assert tensorlend_client.lists() == tensorlend_client.streams() == []

        def test_another_process(tensorlend_client):
            program = "import tensorlend; tensorlend.connect().put('y', [1.0, 2.0])"
            subprocess.run([sys.executable, "-c", program], check=True)
            assert tensorlend_client.wait_for("y", timeout=60).numpy().sum() == 3
        """
    )
    run.assert_outcomes(passed=3)


def test_a_test_that_leaves_leases_fails(session):
    run = session(
        """
        import numpy as np, pytest

        kept = []

        def test_leak(tensorlend_client):
            tensorlend_client.put("x", np.zeros(100))
            kept.append(tensorlend_client.get("x").numpy())

        def test_the_next_one_is_not_blamed(tensorlend_client):
            kept.clear()

        @pytest.mark.tensorlend_leaks
        def test_permitted(tensorlend_client):
            tensorlend_client.put("x", np.zeros(100))
            kept.append(tensorlend_client.get("x"))

        def test_clears(tensorlend_client):
            kept.clear()

        def test_cycle(tensorlend_client):
            tensorlend_client.put("x", np.zeros(100))
            cycle = [tensorlend_client.get("x")]
            cycle.append(cycle)

        def test_failure(tensorlend_client):
            tensorlend_client.put("x", np.zeros(100))
            lease = tensorlend_client.get("x")
            assert lease is None
        """,
        "--strict-markers",
    )
    # A failed test is not blamed for its leases, too.
    run.assert_outcomes(passed=5, failed=1, errors=1)
    run.stdout.fnmatch_lines(["*ERROR at teardown of test_leak*", "*the test left leases on 800 bytes*"])


def test_its_configuration(session, pytester):
    pytester.makeconftest(
        """
import pytest

@pytest.fixture(scope="session")
def tensorlend_config():
    return '[pool]\\nbytes_max = "64MiB"'
"""
    )
    run = pytester.makepyfile(
        """
        import pytest, tensorlend

        def test_full(tensorlend_client):
            with pytest.raises(tensorlend.LimitError):
                tensorlend_client.create(1 << 27, "uint8")
        """
    )
    run = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    run.assert_outcomes(passed=1)
