"""A load client that imports once and is forked for each round. Standard library only; `python -m sweep.kept_client`.

`python -m sweep.kept_client FD MODULE WORD...` stands for `python -m MODULE WORD...`. It asks the module for its help,
which makes it import whatever a run needs (some ten seconds for vLLM), and then waits on the socket FD. Each line
there, a JSON list of further words, is one run: a fork of this process that ends as `python -m MODULE WORD... MORE...`
would. Its exit code goes back as a JSON line. The end of the socket is the end of this process.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import socket
import sys
import traceback
import warnings


def run_as_main(module: str, words: list[str]) -> int:
    """`python -m module words`, in this process. Returns what would be the exit code."""
    sys.argv = [module, *words]
    try:
        with warnings.catch_warnings():
            # It was imported before, which is the purpose here.
            warnings.filterwarnings("ignore", message=".*found in sys.modules.*", category=RuntimeWarning)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as asked:
        if asked.code is None or isinstance(asked.code, int):
            return asked.code or 0
        sys.stderr.write(f"{asked.code}\n")
        return 1
    return 0


def _forked(module: str, words: list[str]) -> int:
    """The exit code of a run in a process of its own, negative for a signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        code = run_as_main(module, words)
    except BaseException:  # noqa: BLE001 - as the interpreter does at the top of any process
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _import_all(module: str, words: list[str]) -> None:
    """Let the module import what it needs: its help needs all of it, in every version."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
        run_as_main(module, [*words, "--help"])
    gc.collect()
    gc.freeze()  # or each collection in a fork would copy the pages of all that is shared


def _main() -> None:
    fd, module, *words = sys.argv[1:]
    with socket.socket(fileno=int(fd)) as channel, channel.makefile("rb") as jobs:
        channel.set_inheritable(False)
        _import_all(module, words)
        for line in jobs:
            code = _forked(module, [*words, *json.loads(line)])
            channel.sendall(json.dumps(code).encode() + b"\n")


if __name__ == "__main__":
    _main()
