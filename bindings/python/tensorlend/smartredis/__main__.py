"""Runs a program or a module in which ``import smartredis`` imports tensorlend's client. The import
has the same effect in Python processes that the program starts.
"""

import sys

from tensorlend import run

from . import alias

_USAGE = """\
usage: python -m tensorlend.smartredis PROGRAM [ARGUMENT...]
       python -m tensorlend.smartredis -m MODULE [ARGUMENT...]
       python -m tensorlend.smartredis -c CODE [ARGUMENT...]
"""


def main(arguments: list[str]) -> None:
    if arguments[:1] in (["-h"], ["--help"]):
        print(_USAGE, end="")
        return
    if not run.is_runnable(arguments):
        sys.exit(_USAGE)
    alias.install()
    run.share_path(alias.SHIM)
    run.execute(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
