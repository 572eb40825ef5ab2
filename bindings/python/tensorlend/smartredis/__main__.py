"""Runs a program or a module in which ``import smartredis`` imports tensorlend's client. The import
has the same effect in Python processes that the program starts.
"""

import os
import runpy
import sys

from . import alias

_USAGE = """\
usage: python -m tensorlend.smartredis PROGRAM [ARGUMENT...]
       python -m tensorlend.smartredis -m MODULE [ARGUMENT...]
"""


def main(arguments: list[str]) -> None:
    alias.install()
    # A spawned process inherits this path. Other processes inherit the environment.
    sys.path.insert(1, alias.SHIM)
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [alias.SHIM, inherited]))
    match arguments:
        case ["-h" | "--help", *_]:
            print(_USAGE, end="")
        case ["-m", module, *_]:
            # Do as Python does. The first argument becomes the module's file, and the current
            # directory is added to the path.
            sys.argv = arguments[1:]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [program, *_] if not program.startswith("-"):
            sys.argv = arguments
            if not sys.flags.safe_path:
                sys.path[0] = os.path.dirname(os.path.realpath(program))
            runpy.run_path(program, run_name="__main__")
        case _:
            sys.exit(_USAGE)


if __name__ == "__main__":
    main(sys.argv[1:])
