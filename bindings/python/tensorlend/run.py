"""Runs a program unchanged, with tensorlend's transports: see docs/how-to/run.md."""

from __future__ import annotations

import atexit
import io
import os
import runpy
import sys
import types
import zipfile
from importlib.machinery import SourceFileLoader

__all__ = ["main"]

_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_run_path")

_USAGE = """\
usage: python -m tensorlend.run [--weights] PROGRAM [ARGUMENT...]
       python -m tensorlend.run [--weights] -m MODULE [ARGUMENT...]
       python -m tensorlend.run [--weights] -c CODE [ARGUMENT...]

Runs a program unchanged. Large arrays of numpy that it sends through multiprocessing, concurrent.futures and joblib, and batches of torch's DataLoader,
travel in lent memory, also between the Python processes that it starts. Prints on standard error what was lent.

  --weights  load_file of safetensors loads each file once per machine: the first process reads the file into lent memory, and all others map it
"""


def main(arguments: list[str]) -> None:
    """Runs the program that the command line names."""
    weights = arguments[:1] == ["--weights"]
    if weights:
        arguments = arguments[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, end="")
        sys.exit(0 if arguments else 2)
    if not is_runnable(arguments):
        sys.exit(_USAGE)
    share_path(_PATH)
    import tensorlend_run_hooks as hooks  # type: ignore[import-not-found, unused-ignore]

    if not os.environ.get(hooks.VARIABLE):
        counters = os.environ[hooks.VARIABLE] = hooks.create_counters()
        # Register the report before the program registers its functions, so that the report is called after them.
        atexit.register(_report, counters, os.getpid())
    if weights:
        os.environ[hooks.WEIGHTS] = "1"
    hooks.watch()
    execute(arguments)


def is_runnable(arguments: list[str]) -> bool:
    """Returns whether `execute` knows how to run this command line."""
    return bool(arguments) and (not arguments[0].startswith("-") or (arguments[0] in ("-c", "-m") and len(arguments) > 1))


def share_path(folder: str) -> None:
    """Adds a folder to the module path of this process and of the processes that it starts."""
    # A spawned process inherits this path. Other processes inherit the environment.
    sys.path.insert(1, folder)
    inherited = os.environ.get("PYTHONPATH")
    if folder not in (inherited or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, inherited]))


def execute(arguments: list[str]) -> None:
    """Runs a program, a module or code as Python does with these arguments."""
    # The module stays `__main__` until the process ends. Threads and pickles need it.
    main_module = sys.modules["__main__"] = types.ModuleType("__main__")
    main_module.__dict__["__builtins__"] = __builtins__
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        _run_module(arguments[1], True)
        return
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        if not sys.flags.safe_path:
            sys.path[0] = ""
        _run_source(arguments[1], "<string>", main_module)
        return
    sys.argv = arguments
    program = os.path.abspath(arguments[0])
    if os.path.isdir(program) or zipfile.is_zipfile(program):
        sys.path[0] = program
        _run_module("__main__", False)
    else:
        _run_file(program, main_module)


def _run_module(name: str, alter_argv: bool) -> None:
    """Runs a module as `python -m` does."""
    # A private function, by which Python itself runs modules. The public one restores `__main__` at the end of the main thread.
    vars(runpy)["_run_module_as_main"](name, alter_argv)


def _run_file(program: str, main_module: types.ModuleType) -> None:
    """Runs a file as Python does."""
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(program))
    try:
        with io.open_code(program) as file:
            source = file.read()
    except OSError as error:
        sys.exit(f"cannot run the program: {error}")
    main_module.__file__ = program
    main_module.__loader__ = SourceFileLoader("__main__", program)
    _run_source(source, program, main_module)


def _run_source(source: str | bytes, name: str, main_module: types.ModuleType) -> None:
    exec(compile(source, name, "exec", dont_inherit=True), main_module.__dict__)


def _report(counters: str, pid: int) -> None:
    if os.getpid() != pid:
        return
    import tensorlend_run_hooks as hooks  # type: ignore[import-not-found, unused-ignore]

    try:
        (values, nbytes, refused, files, file_bytes, files_refused), reason = hooks.totals(counters)
    except OSError:
        print("tensorlend: the program has closed the file that counts what is lent", file=sys.stderr)
        return
    said = f"lent {values:,} arrays and tensors, {nbytes / (1 << 20):,.1f} MiB that were not pickled"
    if refused:
        said += f"; {refused:,} could not be lent and travelled as usual"
    if hooks.WEIGHTS in os.environ or files or files_refused:
        said += f"; weights: {files:,} loaded from lent memory, {file_bytes / (1 << 20):,.1f} MiB"
    if files_refused:
        said += f"; {files_refused:,} could not be lent and were loaded as usual ({reason})"
    for problem in hooks.problems:
        said += f"; not installed: {problem}"
    print(f"tensorlend: {said}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
