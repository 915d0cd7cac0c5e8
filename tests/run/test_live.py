"""The live table after its terminal has become narrower, on terminals that wrap their lines anew and on those that cut
them off."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.text import Text

from trainop.run.live import LiveTable, wraps_again
from trainop.run.output import Output
from trainop.run.screen import JobView, Screen

HEIGHT = 20
CODES = re.compile(r"\x1b\[(\??\d*(?:;\d+)*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n])")


class Terminal:
    """What ECMA-48 says about the few codes in use. A row into which a character did not fit goes on in the next one.
    `resize` joins and splits such rows again where the terminal `wraps`, as libvte, tmux, kitty and others do."""

    def __init__(self, width: int, *, wraps: bool) -> None:
        self.width, self.wraps = width, wraps
        self.rows = [""]
        self.goes_on = [False]
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        for argument, code, back, down, character in CODES.findall(text):
            if back:
                self.column = 0
            elif down:
                self._down()
                self.column = 0  # ONLCR of the terminal's line discipline
            elif character:
                self._put(character)
            elif code == "A":
                self.row = max(0, self.row - int(argument or 1))
            elif code == "K":
                assert argument == "2"
                self.rows[self.row], self.goes_on[self.row] = "", False
            else:
                assert code in "mhl", code

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")
            self.goes_on.append(False)

    def _put(self, character: str) -> None:
        if self.column == self.width:
            self.goes_on[self.row] = True
            self._down()
            self.column = 0
        line = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = line[: self.column] + character + line[self.column + 1 :]
        self.column += 1

    def resize(self, width: int) -> None:
        self.width = width
        if not self.wraps:
            self.rows = [row[:width] for row in self.rows]
            return
        assert self.rows[self.row] == "", "else where the cursor is afterwards depends on the terminal"
        rows: list[str] = []
        goes_on: list[bool] = []
        at, line = 0, ""
        for number, (row, more) in enumerate(zip(self.rows, self.goes_on, strict=True)):
            if number == self.row:
                at = len(rows)
            line += row
            if more:
                continue
            parts = [line[start : start + width] for start in range(0, max(1, len(line)), width)]
            rows += parts
            goes_on += [True] * (len(parts) - 1) + [False]
            line = ""
        self.rows, self.goes_on, self.row, self.column = rows, goes_on, at, 0


class Scene:
    """A live table of a job on a terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, wraps: bool) -> None:
        monkeypatch.delenv("TMUX", raising=False)
        monkeypatch.delenv("XTERM_VERSION", raising=False)
        monkeypatch.setenv("TERM", "xterm-256color" if wraps else "linux")
        self.file = io.StringIO()
        self.console = Console(file=self.file, force_terminal=True, width=100, height=HEIGHT, color_system=None)
        self.terminal = Terminal(100, wraps=wraps)
        self.job = JobView("train", "PyTorchJob", ["Created", "Running"])
        for index in range(4):
            self.job.replica(f"worker-{index}").last_line = "loss " + "0123456789" * 12
        self.live = LiveTable(self.console, Screen(Output(self.console), [self.job]).table)

    def show(self) -> None:
        self.terminal.feed(self.file.getvalue())
        self.file.seek(0)
        self.file.truncate()

    def print(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)
        self.show()

    def resize(self, width: int, height: int = HEIGHT) -> None:
        self.terminal.resize(width)
        self.console.size = type(self.console.size)(width, height)
        self.live.refresh()
        self.show()

    def lines(self) -> list[str]:
        return [row for row in self.terminal.rows if row]


@pytest.mark.parametrize("wraps", [True, False])
async def test_a_narrow_terminal_shows_one_table_and_all_lines(monkeypatch: pytest.MonkeyPatch, wraps: bool):
    scene = Scene(monkeypatch, wraps=wraps)
    scene.live.start()
    for width in (100, 77, 76, 50, 49, 31, 80, 40):
        scene.resize(width)
        scene.print(f"at {width}")
        table = [line for line in scene.lines() if not line.startswith("at ")]
        assert table[0].startswith("PyTorchJob train"), table
        assert [line.split()[0] for line in table if line.startswith(("PyTorchJob", "REPLICA", "worker"))] == [
            "PyTorchJob", "REPLICA", "worker-0", "worker-1", "worker-2", "worker-3",
        ], table  # fmt: skip
        assert all(" Pending  0 " in line for line in table if line.startswith("worker"))
    scene.live.stop()
    scene.show()
    assert scene.lines() == [f"at {width}" for width in (100, 77, 76, 50, 49, 31, 80, 40)]


async def test_a_table_that_is_higher_than_the_terminal_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    scene = Scene(monkeypatch, wraps=True)
    scene.live.start()
    scene.print("first")
    scene.resize(100, height=4)
    assert len(scene.lines()) == 1 + 3, "one line of the terminal stays free for the cursor"
    scene.live.stop()
    scene.show()
    assert scene.lines() == ["first"]


@pytest.mark.parametrize(
    ("environment", "wraps"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "XTERM_VERSION": "XTerm(379)"}, False),
        ({"TERM": "screen-256color"}, False),
        ({"TERM": "screen-256color", "TMUX": "/tmp/tmux-0/default,1,0", "XTERM_VERSION": "XTerm(379)"}, True),
        ({"TERM": "linux"}, False),
        ({}, True),
    ],
)
def test_terminals_that_cut_lines_off_are_known(environment: dict[str, str], wraps: bool):
    assert wraps_again(environment) is wraps
