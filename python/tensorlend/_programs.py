"""The programs that the package contains: `tensorlend` and `tensorlendd`."""

import signal
import sys

from tensorlend import _native


def tool() -> None:
    """The command line tool."""
    # Ctrl-C must end the program at once: Python's own handler would not run before the program has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    again = [sys.executable, "-m", "tensorlend"]
    sys.exit(_native.tool(["tensorlend", *sys.argv[1:]], again))


def daemon() -> None:
    """The daemon."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.daemon(["tensorlendd", *sys.argv[1:]]))
