"""What `trainop run` shows: log lines that scroll, and on a terminal a table of the replicas that stays below them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trainop.run.output import Output

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
_LEVELS = {"Succeeded": "green", "Running": "green", "Failed": "red", "Restarting": "yellow", "Suspended": "yellow"}
_WIDEST = 2_000
KEPT_LINES = 10
"""Log lines of a replica that are shown again when it fails."""


@dataclass(slots=True)
class Replica:
    """One replica as the table shows it; `name` is `worker-0`, with several jobs `train/worker-0`."""

    name: str
    phase: str = "Pending"
    pods: dict[str, int] = field(default_factory=dict)
    """Each pod that it has had, by UID, and how often containers of it were restarted."""
    detail: str = ""
    warning: str = ""
    """The latest warning event about its pod, while that has not started."""
    exit_code: int | None = None
    exit_reason: str = ""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    @property
    def restarts(self) -> int:
        """A pod that takes the place of another is a restart, too."""
        return sum(self.pods.values()) + max(0, len(self.pods) - 1)


@dataclass(slots=True)
class JobView:
    """One job as the table shows it; `conditions`: which are true, in the order of its status."""

    name: str
    kind: str
    conditions: list[str] = field(default_factory=list)
    replicas: dict[str, Replica] = field(default_factory=dict)
    started: bool = False
    """A container of it has run."""

    def replica(self, name: str) -> Replica:
        return self.replicas.setdefault(name, Replica(name))


class Screen:
    """Prints to `output`; on a terminal the table lives as long as the `with` block."""

    def __init__(self, output: Output, jobs: Iterable[JobView]) -> None:
        self._output = output
        self._jobs = list(jobs)
        self._colours: dict[str, str] = {}
        self.terminal = output.console.is_terminal

    def __enter__(self) -> Self:
        if self.terminal:
            console = self._output.console
            self._output.show(Live(console=console, get_renderable=self.table, auto_refresh=False, transient=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._output.hide()

    async def log(self, replica: Replica, prefix: str, block: bytes) -> None:
        """Whole lines that a replica printed; returns when they are out. A file or pipe gets them as they are."""
        lines = block.decode(errors="replace").removesuffix("\n").split("\n")
        if self.terminal:
            colour = self._colours.setdefault(replica.name, _COLOURS[len(self._colours) % len(_COLOURS)])
            self._output.print(Text("\n").join(_shown(replica.name, colour, prefix + line) for line in lines))
        else:
            start = f"{replica.name:<10} {prefix}"
            self._output.write(start + f"\n{start}".join(lines) + "\n")
        await self._output.drained()

    def note(self, text: str, style: str = "dim") -> None:
        """One line of our own."""
        self._output.print(Text(text, style=style))

    def condition(self, job: JobView, kind: str, message: str) -> None:
        """A condition became true."""
        style = _LEVELS.get(kind, "")
        self._output.print(Text.assemble((job.name, "bold"), " ", (kind, style or "bold"), " ", message))

    def failure(self, job: JobView) -> None:
        """Which replica failed, with its exit code and last lines."""
        for replica in job.replicas.values():
            if replica.exit_code:
                reason = f" ({replica.exit_reason})" if replica.exit_reason else ""
                self.note(f"{replica.name} exited with code {replica.exit_code}{reason}; its last lines:", "bold red")
                for line in replica.tail or ("(it printed nothing)",):
                    self.note(f"  {line}", "")

    def table(self) -> Group:
        return Group(*(_job_table(job) for job in self._jobs))


def shorten(line: str) -> str:
    """As much of a line as helps a person."""
    return line if len(line) <= _WIDEST else f"{line[:_WIDEST]} … (the line goes on)"


def _shown(name: str, colour: str, line: str) -> Text:
    """Colours of the line stay; whatever else it would do to the terminal does not."""
    line = shorten(line)
    return Text.assemble((f"{name:<10} ", colour), Text.from_ansi(line) if "\x1b" in line or "\r" in line else line)


def _job_table(job: JobView) -> Group:
    """The title is no part of the table, which may be narrower."""
    title = Text.assemble((f"{job.kind} {job.name}", "bold"), *(f"  {_mark(true)}{true}" for true in job.conditions))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("REPLICA", "PHASE", "RESTARTS", ""):
        table.add_column(heading, no_wrap=True)
    for name in sorted(job.replicas, key=_in_order):
        replica = job.replicas[name]
        phase = Text(replica.phase, style=_LEVELS.get(replica.phase, ""))
        table.add_row(replica.name, phase, str(replica.restarts), Text(replica.detail, overflow="ellipsis"))
    return Group(title, table)


def _mark(condition: str) -> str:
    return "✗ " if condition == "Failed" else "✓ "


def _in_order(name: str) -> tuple[str, int]:
    role, _, index = name.rpartition("-")
    return role, int(index) if index.isdigit() else 0
