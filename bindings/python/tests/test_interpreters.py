"""Interpreters: one for each process; and threads without the global lock."""

import sys
import sysconfig

import pytest

SOURCE = """
import sys
try:
    import tensorlend
except ImportError as error:
    print("ImportError", error)
else:
    print("imported")
sys.stdout.flush()
"""


def test_a_sub_interpreter_is_refused(script):
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    pytest.importorskip(name, reason=f"this Python has no {name}")
    run = "exec" if sys.version_info >= (3, 13) else "run_string"
    done = script(f"import tensorlend, {name} as i; i.{run}(i.create(), {SOURCE!r})")
    assert done.stdout.startswith("ImportError") and "interpreter" in done.stdout


def test_free_threading(script):
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this Python has a global interpreter lock")
    done = script("import sys, tensorlend; print(sys._is_gil_enabled())")
    assert done.stdout == "False\n", "importing tensorlend brings the lock back"
