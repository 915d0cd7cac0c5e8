"""What takes the lines of the logs of a job: `trainop logs` prints them, the page keeps them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import click

from trainop.commands.loglines import Line
from trainop.commands.target import Replica
from trainop.runtime.lowlevel import printable

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


Identity = tuple[str, str, int]
"""The UID of a pod, a container of it, and how often that was restarted."""


@dataclass(frozen=True, slots=True)
class Source:
    """One container of a replica, in one of its runs."""

    replica: Replica
    container: str
    label: str
    restarts: int

    @property
    def identity(self) -> Identity:
        return str(self.replica.pod["metadata"].get("uid")), self.container, self.restarts


class Sink(Protocol):
    """Takes what the logs of a job have."""

    def begin(self, failed: str, labels: Sequence[str]) -> None:
        """`failed`: the replica that failed first, or empty."""
        ...

    def lines(self, source: Source, lines: Sequence[Line]) -> None:
        """At least one, in their order."""
        ...

    def rest(self, text: str) -> None:
        """A line that the status of the job kept."""
        ...

    def note(self, text: str) -> None:
        """Something about the logs that is not in them."""
        ...


class Printer:
    """Prints to stdout: unmodified in a pipe, on a terminal without control sequences, and with colours of ours."""

    def __init__(self, *, timestamps: bool) -> None:
        self._terminal = sys.stdout.isatty()
        self._timestamps = timestamps
        self._failed = ""
        self._width = 10

    def begin(self, failed: str, labels: Sequence[str]) -> None:
        self._failed = failed
        self._width = max(map(len, labels), default=10)

    def lines(self, source: Source, lines: Sequence[Line]) -> None:
        label = source.label.ljust(self._width)
        if not self._terminal:
            for line in lines:
                sys.stdout.buffer.write(f"{label} {self._time(line)}".encode() + line.text + b"\n")
            sys.stdout.buffer.flush()
            return
        number = abs(hash(source.label)) % len(_COLOURS)
        colour = "red" if source.replica.name == self._failed else _COLOURS[number]
        for line in lines:
            text = printable(line.text.decode(errors="replace"))
            click.echo(f"{click.style(label, fg=colour)} {self._time(line)}{text}")

    def _time(self, line: Line) -> str:
        return f"{line.time} " if self._timestamps else ""

    def rest(self, text: str) -> None:
        click.echo(text)

    def note(self, text: str) -> None:
        click.echo(f"--- {text}", err=True)
