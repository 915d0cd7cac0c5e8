"""Runs a session in the background, as a process of a session of its own that no terminal ends."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence

import click

_FLAGS = frozenset({"-d", "--detach"})


def attached(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command without the flag to run in the background; those of a script are not touched."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*(each for each in arguments[:end] if each not in _FLAGS), *arguments[end:]]


def run_detached(work: Callable[[Callable[[str], None]], int]) -> int:
    """Runs `work` in a new process, and returns once it has called its argument with the name of the run: 0. If it ends
    before, its exit code; what it has written to stderr by then is shown."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as errors:  # no pipe: pods inherit it, and a reader would wait for their end
        child = os.fork()
        if child == 0:
            os.close(reader)
            _run_child(work, writer, errors.fileno())
        os.close(writer)
        name, code = _wait_for_name(reader, child)
        errors.seek(0)
        click.echo(errors.read(), nl=False, err=True)
    if name:
        ways = f"trainop attach {name}; trainop logs -f {name}; trainop stop {name}"
        click.echo(f"run {name} is in the background: {ways}")
    return code


def _wait_for_name(reader: int, child: int) -> tuple[str, int]:
    try:
        with os.fdopen(reader, encoding="utf-8") as pipe:
            name = pipe.readline().strip()
        return name, 0 if name else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        return "", 130


def _run_child(work: Callable[[Callable[[str], None]], int], writer: int, errors: int) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(errors, 2)

    def ready(name: str) -> None:
        os.dup2(null, 2)
        os.write(writer, f"{name}\n".encode())
        os.close(writer)

    code = 1
    try:
        code = work(ready)
    finally:
        sys.stderr.flush()
        os._exit(code)
