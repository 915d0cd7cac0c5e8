"""The live table of a terminal, which is erased as a whole also after the terminal has become narrower."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType, RenderResult
from rich.control import Control
from rich.live import Live
from rich.live_render import LiveRender
from rich.segment import ControlType, Segment


class LiveTable(Live):
    """Shows what `draw` returns below the printed lines, until it is stopped; then it is gone."""

    def __init__(self, console: Console, draw: Callable[[], RenderableType]) -> None:
        super().__init__(console=console, get_renderable=draw, auto_refresh=False, transient=True)
        self._live_render = _Erasable(console, draw())


class _Erasable(LiveRender):
    """Counts the rows that its lines take in the terminal as it is now: most terminals wrap lines that have become
    too long, so that the table grows. Rich counts the rows of the terminal as it was, and left some of them behind.

    The cursor stays at the beginning of the line below: on a line that is wrapped, it could be at the end of any row.
    """

    def __init__(self, console: Console, renderable: RenderableType) -> None:
        super().__init__(renderable)
        self._console = console
        self._wraps = wraps_again(os.environ)
        self._widths: list[int] = []

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.vertical_overflow = "ellipsis"  # also at the end, as what has scrolled away cannot be erased
        options = options.copy()
        options.size = ConsoleDimensions(options.size.width, max(1, options.size.height - 1))
        segments = (each for each in super().__rich_console__(console, options) if isinstance(each, Segment))
        lines = [_strip(line) for line in Segment.split_lines(segments)]
        self._widths = [Segment.get_line_length(line) for line in lines]
        for line in lines:
            yield from line
            yield Segment.line()

    def position_cursor(self) -> Control:
        """Erases the table, and leaves the cursor where it began."""
        return _erase(self._rows())

    def restore_cursor(self) -> Control:
        """The same from the next line, on which `Live.stop` begins."""
        return _erase(self._rows() + 1)

    def _rows(self) -> int:
        width = max(1, self._console.width) if self._wraps else max([1, *self._widths])
        return sum(max(1, -(-each // width)) for each in self._widths)


def _erase(rows: int) -> Control:
    """Of the rows above the cursor, which is left in the first of them."""
    return Control(ControlType.CARRIAGE_RETURN, *((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)) * rows)


def wraps_again(environment: Mapping[str, str]) -> bool:
    """Whether the terminal wraps its lines anew when its width changes, as nearly all do; xterm, GNU screen and the
    console of Linux cut them off."""
    if "TMUX" in environment:
        return True
    return "XTERM_VERSION" not in environment and not environment.get("TERM", "").startswith(("screen", "linux"))


def _strip(line: list[Segment]) -> list[Segment]:
    """Without the blanks at its end, which terminals treat differently when they wrap lines."""
    while line and not line[-1].text.strip():
        line.pop()
    if line:
        text, style, control = line[-1]
        line[-1] = Segment(text.rstrip(), style, control)
    return line
