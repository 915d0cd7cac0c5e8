"""Writes what a new kind of job needs: python -m e2e.new_kind Foo (`make new-kind NAME=Foo`).

`docs/new-kind.md` is what is written, with the new name for `My`. Three sentences of it are instructions: "In the new
file `FILE`:" and "In `FILE`, above `LINE`:", both before a block of code, and "In `FILE`, `OLD` becomes `NEW`.".
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = "docs/new-kind.md"
MARK = "TODO" + "(new kind)"
"""In what somebody has to think about; `tests/test_registries.py` fails while one is left."""
BLOCK = re.compile(
    r"[Ii]n(?: the new file)?\s+`(?P<file>[^`]+)`(?:, above\s+`(?P<line>[^`]+)`)?:\n\n```\w+\n(?P<text>.*?)```",
    re.DOTALL,
)
CHANGE = re.compile(r"[Ii]n `(?P<file>[^`]+)`, `(?P<old>[^`]+)` becomes `(?P<text>[^`]+)`\.")
DECIDES = ("trainop/kinds/", "tests/", "examples/")
"""Where the example decides something; what is elsewhere follows from the name."""


class Step(NamedTuple):
    """A text for a file: the whole file, or above a line, or for an old text."""

    file: str
    text: str
    above: str = ""
    old: str = ""


def steps_of(page: str) -> list[Step]:
    """The instructions of the page, in its order."""
    found = [
        (each.start(), Step(each["file"], each["text"], above=each["line"] or "")) for each in BLOCK.finditer(page)
    ]
    found += [(each.start(), Step(each["file"], each["text"], old=each["old"])) for each in CHANGE.finditer(page)]
    return [step for _, step in sorted(found)]


def rename(text: str, name: str) -> str:
    """With `name` for the example's in each of its spellings; words such as `myriad` stay."""
    text = text.replace("<name>", "my").replace("<kind>", "myjob")
    for old, new in (("My", name), ("MY", name.upper()), ("my", name.lower())):
        text = re.sub(rf"(?<![A-Za-z]){old}(?=Job|job|Replica|[^A-Za-z]|$)", new, text)
    return text


def mark(step: Step) -> str:
    """The text of the step with a mark, if it decides something: below the first words of a new file."""
    if step.old or not step.file.startswith(DECIDES):
        return step.text
    indent = re.match(r" *", step.text)[0]  # type: ignore[index]  # always matches
    lines = step.text.splitlines(keepends=True)
    head = 0
    if not step.above:
        docstring = ast.parse(step.text).body[0].end_lineno if step.file.endswith(".py") else None
        head = docstring or next(number for number, line in enumerate(lines) if not line.startswith("#"))
    return "".join([*lines[:head], f"{indent}# {MARK}: is this right for MyJob?\n", *lines[head:]])


def carry_out(step: Step, root: Path, name: str) -> None:
    """Raises ValueError if the file has not exactly one such place, or the new file is there."""
    path, text = root / rename(step.file, name), rename(mark(step), name)
    place = step.old or step.above
    if not place:
        if path.exists():
            raise ValueError(f"{path} is there already")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    before = path.read_text(encoding="utf-8")
    at = re.compile(rf"^{re.escape(place)}" if step.above else re.escape(place), re.MULTILINE)
    if (found := len(at.findall(before))) != 1:
        raise ValueError(f"{step.file} has {found} places `{place}` instead of one: {PAGE} has to follow it")
    after = at.sub(lambda found: text + found[0] if step.above else text, before)
    path.write_text(after, encoding="utf-8")


def write(root: Path, name: str) -> None:
    """All that the page of `root` says, for a kind called `name`Job."""
    for step in steps_of((root / PAGE).read_text(encoding="utf-8")):
        carry_out(step, root, name)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make new-kind NAME=Foo", description="Write what a new kind of job needs.")
    parser.add_argument("name", help="of the kind without `Job`, such as Foo for FooJob")
    name = parser.parse_args().name
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name) or name.endswith("Job"):
        parser.error(f"{name!r} names no kind: a capital letter, then letters and digits, without `Job` at the end")
    try:
        write(ROOT, name)
    except ValueError as error:
        parser.error(str(error))
    text = f"{name}Job is written. Each `{MARK}` asks what only you know; {PAGE} says what comes next."
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
