"""SVG bar charts, one per scenario: bars show medians, whiskers minimum and maximum."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, BAR, GAP, LABEL = 760, 18, 30, 190
OURS, FLOOR = "#2f6fd0", "#9aa0a6"
COLOURS = {"training-operator-tuned": "#d0762f", "training-operator-default": "#e3b48c"}


def chart(title: str, figures: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """The SVG text; `figures` maps the title of a figure and an operator to the values of its runs."""
    parts: list[str] = []
    y = 40
    for name, found in figures.items():
        if not any(found.values()):
            continue
        parts.append(_text(10, y, name, weight="bold"))
        y += 10
        most = max(max(each) for each in found.values() if each) or 1.0
        for operator, each in found.items():
            if each:
                parts += _bar(y, operator, each, most)
                y += BAR + 4
        y += GAP
    body = "\n".join([_text(10, 18, title, size=15, weight="bold"), *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _bar(y: int, operator: str, found: Sequence[float], most: float) -> Iterator[str]:
    scale = (WIDTH - LABEL - 90) / most
    middle = statistics.median(found)
    yield _text(LABEL - 8, y + BAR - 5, operator, anchor="end")
    colour = FLOOR if operator.startswith("floor") else COLOURS.get(operator, OURS)
    yield f'<rect x="{LABEL}" y="{y}" width="{middle * scale:.1f}" height="{BAR}" fill="{colour}"/>'
    low, high = LABEL + min(found) * scale, LABEL + max(found) * scale
    yield f'<path d="M{low:.1f} {y + BAR / 2}H{high:.1f}" stroke="black"/>'
    yield _text(int(high) + 6, y + BAR - 5, f"{middle:.3g}")


def _text(x: int, y: int, text: str, *, size: int = 12, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">{escape(text)}</text>'
    )
