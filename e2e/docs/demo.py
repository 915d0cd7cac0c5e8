"""`python -m e2e.docs.demo` runs the second job of `make demo` on a terminal and writes the picture `docs/demo.svg`.

Everything in the picture was printed by that run. `tests/test_readme.py` compares its words with those of a new run.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "demo.svg"
COMMAND = ("trainop", "run", "examples/pytorch/recover.yaml")
WIDTH = 100
CONTROL = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])|[\r\n]|[^\x1b\r\n]+")
FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
"""The fonts that rich would load from elsewhere."""


def on_terminal(command: tuple[str, ...]) -> str:
    """The output of a command on a terminal of its own. Raises `CalledProcessError` if it fails."""
    master, slave = pty.openpty()
    state = os.environ.get("XDG_STATE_HOME") or tempfile.mkdtemp()  # the run is kept, but not among those of the user
    variables = {**os.environ, "COLUMNS": f"{WIDTH}", "LINES": "50", "TERM": "xterm-256color", "XDG_STATE_HOME": state}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    with subprocess.Popen(command, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, env=variables) as process:
        os.close(slave)
        output = b""
        try:
            while part := os.read(master, 65536):
                output += part
        except OSError:
            pass  # Linux: the last writer has closed the terminal
        finally:
            os.close(master)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, output)
    return output.decode()


def lines_of(output: str) -> list[str]:
    """What the terminal shows at the end, with its colours: the live table has been erased line by line."""
    rows, at = [""], 0
    for found in CONTROL.finditer(output):
        count, letter = found[1], found[2]
        if letter == "m":
            rows[at] += found[0]
        elif letter == "A":
            at = max(0, at - int(count or 1))
        elif letter == "K":
            rows[at] = ""
        elif found[0] == "\n":
            at += 1
            rows += [""] * (at == len(rows))
        elif letter is None and found[0] != "\r":
            rows[at] += found[0]
    return [row for row in rows if Text.from_ansi(row).plain.strip()]


def picture(lines: list[str]) -> str:
    """An SVG of the lines in a window, which needs nothing from elsewhere."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), " ".join(COMMAND)))
    for line in lines:
        console.print(Text.from_ansi(line))
    form = FONTS.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "monospace")
    svg = console.export_svg(title="trainop", code_format=form, unique_id="demo")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def main() -> None:
    PICTURE.write_text(picture(lines_of(on_terminal(COMMAND))), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)} is written")


if __name__ == "__main__":
    main()
