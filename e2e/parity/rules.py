"""The table of all differences from the replaced operators, `rules.toml`: the source of the migrate pages.

A row is written into a page by `make docs`. Differences that a recording shows are named in `leaves`, `flags`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

DOCS = Path(__file__).resolve().parents[2] / "docs"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of a page."""

    page: str
    """The name of the page, without its ending."""
    table: str
    """The heading above the table."""
    cells: tuple[str, ...]
    shown_by: tuple[str, ...]
    """The tests that show it, as pytest names them."""
    leaves: tuple[str, ...] = ()
    """Patterns of `operator scenario moment path`, of differences in `recorded/children`."""
    flags: tuple[str, ...] = ()
    """`release flag`, of differences in `recorded/flags`."""

    @property
    def line(self) -> str:
        return f"| {' | '.join(self.cells)} |"


@cache
def rules() -> tuple[Rule, ...]:
    """In the order of the pages."""
    content = Path(__file__).with_name("rules.toml").read_bytes()
    return tuple(msgspec.toml.decode(content, type=dict[str, list[Rule]])["rule"])


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), pattern) for rule in rules() for pattern in rule.leaves)


def covering(operator: str, scenario: str, moment: str, path: str) -> list[str]:
    """The patterns that name the difference."""
    text = f"{operator} {scenario} {moment} {path}"
    return [source for pattern, source in _patterns() if pattern.fullmatch(text)]


def pages() -> dict[Path, str]:
    """The migrate pages with their tables made of the rules."""
    found: dict[Path, str] = {}
    for name in dict.fromkeys(rule.page for rule in rules()):
        path = DOCS / f"{name}.md"
        text = path.read_text(encoding="utf-8")
        for table in dict.fromkeys(rule.table for rule in rules() if rule.page == name):
            lines = [rule.line for rule in rules() if (rule.page, rule.table) == (name, table)]
            text = _with_table(text, table, lines)
        found[path] = text
    return found


def _with_table(text: str, heading: str, lines: list[str]) -> str:
    """The page with these rows in the first table below a heading, whose two lines at the top stay."""
    before, after = text.split(f"\n## {heading}\n", 1)
    made = re.sub(
        r"(^\|[^\n]*\n\|[-|]+\n)(?:\|[^\n]*\n)*",
        lambda top: top[1] + "".join(f"{line}\n" for line in lines),
        after,
        count=1,
        flags=re.MULTILINE,
    )
    return f"{before}\n## {heading}\n{made}"
