"""The programs that the package contains: `tensorlend` and `tensorlendd`."""

import signal
import sys

from tensorlend import _native


def tool() -> None:
    """Runs the command-line tool."""
    # Let Ctrl-C end the program at once, because Python's own handler would run only after the program has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    again = [sys.executable, "-m", "tensorlend"]
    sys.exit(_native.tool(["tensorlend", *sys.argv[1:]], again))


def daemon() -> None:
    """Runs the daemon."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.daemon(["tensorlendd", *sys.argv[1:]]))


# How a daemon starts its fd store, which is the same program.
if __name__ == "__main__":
    daemon()
