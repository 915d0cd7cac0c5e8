"""The output of `trainop run`: log lines and conditions, and on a terminal a live table of replicas below them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Group
from rich.table import Table
from rich.text import Text

from trainop.run.exits import Exits
from trainop.run.live import LiveTable
from trainop.run.output import Output
from trainop.run.pace import Pace
from trainop.runtime import Json
from trainop.runtime.lowlevel import printable

_COLOURS = (
    "cyan",
    "green",
    "yellow",
    "magenta",
    "blue",
    "bright_cyan",
    "bright_green",
    "bright_yellow",
    "bright_magenta",
)
_STYLES = {"Succeeded": "green", "Running": "green", "Failed": "red", "Restarting": "yellow", "Suspended": "yellow"}
_MAX_LINE = 2_000
"""Characters of a log line that are shown on a terminal."""

TAIL_LINES = 10
"""Number of a replica's last log lines that are shown when it fails."""


@dataclass(slots=True)
class Replica:
    """A row of the table. `name` is `worker-0`, or `train/worker-0` if there are several jobs."""

    name: str
    phase: str = "Pending"
    pods: dict[str, int] = field(default_factory=dict)
    """Container restarts by UID of each pod that the replica has had."""
    detail: str = ""
    warning: str = ""
    """The latest warning event about its pod, until the pod starts."""
    last_line: str = ""
    """The last line of its log, also one that is not finished, such as a progress bar."""
    heard: float = 0.0
    """When it began or printed something last, on the monotonic clock; 0: it has not begun."""
    pod: Json | None = None
    lost: bool = False
    """It has failed after its job had ended: its restarts are counted by nobody, and may go on for ever."""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))

    @property
    def outcome(self) -> str:
        return "Failed" if self.lost else self.phase

    @property
    def restarts(self) -> int:
        """The number of restarts; a replaced pod counts as one."""
        return sum(self.pods.values()) + max(0, len(self.pods) - 1)


@dataclass(slots=True)
class JobView:
    """A table of the screen. `conditions` are the types of the true conditions, in the order of the job's status."""

    name: str
    kind: str
    conditions: list[str] = field(default_factory=list)
    replicas: dict[str, Replica] = field(default_factory=dict)
    started: bool = False
    """Whether a container of the job has started."""
    pace: Pace = field(default_factory=Pace)
    """What it reports about its progress."""

    def replica(self, name: str) -> Replica:
        return self.replicas.setdefault(name, Replica(name))


class Screen:
    """Prints to `output`. On a terminal, the table is displayed during the `with` block."""

    def __init__(self, output: Output, jobs: Iterable[JobView]) -> None:
        self._output = output
        self._jobs = list(jobs)
        self._colours: dict[str, str] = {}
        self.terminal = output.console.is_terminal

    def __enter__(self) -> Self:
        if self.terminal:
            self._output.show(LiveTable(self._output.console, self.table))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._output.hide()

    async def log(self, replica: Replica, prefix: str, block: bytes) -> None:
        """Prints whole log lines of a replica, unmodified for a file or pipe. Returns when they have been written."""
        lines = block.decode(errors="replace").removesuffix("\n").split("\n")
        if self.terminal:
            colour = self._colours.setdefault(replica.name, _COLOURS[len(self._colours) % len(_COLOURS)])
            self._output.print(Text("\n").join(_format_line(replica.name, colour, prefix + line) for line in lines))
        else:
            start = f"{replica.name:<10} {prefix}"
            self._output.write(start + f"\n{start}".join(lines) + "\n")
        await self._output.drained()

    async def drained(self) -> None:
        """Returns when everything has been written."""
        await self._output.drained()

    def note(self, text: str, style: str = "dim") -> None:
        """Prints one line, without the control characters that it may contain."""
        self._output.print(Text(printable(text), style=style))

    def condition(self, job: JobView, kind: str, message: str) -> None:
        """Prints a condition that became true."""
        style = _STYLES.get(kind, "")
        self._output.print(Text.assemble((job.name, "bold"), " ", (kind, style or "bold"), " ", printable(message)))

    def progress(self, job: JobView) -> None:
        """Prints what a job has reported. On a terminal, the table shows it instead."""
        if not self.terminal:
            self._output.print(Text.assemble((job.name, "bold"), " ", job.pace.text))

    def failure(self, job: JobView, exits: Exits) -> None:
        """Prints the root cause with the end of its log, and what happened to the other replicas."""
        for text, log in exits.describe():
            if log is None:
                self.note(text, "")
                continue
            self.note(f"{text}; last log lines:", "bold red")
            culprit = job.replicas.get(exits.name_of(exits.cause)) if exits.cause else None
            for line in log or (culprit.tail if culprit else ()) or ("(no output)",):
                self.note(f"  {line}", "")

    def table(self) -> Group:
        return Group(*(_job_table(job) for job in self._jobs))


def shorten(line: str) -> str:
    """`line`, truncated for display on a terminal."""
    return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]} … (truncated)"


def _format_line(name: str, colour: str, line: str) -> Text:
    """Formats a log line. ANSI colours are kept; other control sequences are removed."""
    line = shorten(line)
    return Text.assemble((f"{name:<10} ", colour), Text.from_ansi(line) if "\x1b" in line or "\r" in line else line)


def _job_table(job: JobView) -> Group:
    """Title and table of a job. The title is separate, because it may be wider than the table."""
    title = Text.assemble((f"{job.kind} {job.name}", "bold"), *(f"  {_symbol(true)}{true}" for true in job.conditions))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("REPLICA", "PHASE", "RESTARTS"):
        table.add_column(heading, no_wrap=True)
    table.add_column("")  # the only one that shrinks with the terminal
    for name in sorted(job.replicas, key=_sort_key):
        replica = job.replicas[name]
        phase = Text(replica.phase, style=_STYLES.get(replica.phase, ""))
        table.add_row(
            replica.name, phase, str(replica.restarts), Text(_describe(replica), no_wrap=True, overflow="ellipsis")
        )
    progress = job.pace.draw()
    return Group(title, progress, table) if progress else Group(title, table)


def _describe(replica: Replica) -> str:
    """What a replica waits for, or the last line of its log."""
    return printable(replica.detail or replica.last_line).replace("\n", " ")


def _symbol(condition: str) -> str:
    return "✗ " if condition == "Failed" else "✓ "


def _sort_key(name: str) -> tuple[str, int]:
    role, _, index = name.rpartition("-")
    return role, int(index) if index.isdigit() else 0
