"""From results to what people read: a table of min, median and max with ratios, and one chart for each scenario."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from e2e.bench.runs import FLOOR, MOST_FOREIGN
from trainop.runtime.objects import Json

BASE = "training-operator-tuned"
"""Ratios are to the median of this operator."""


class Column(NamedTuple):
    title: str
    name: str
    factor: float = 1.0
    digits: int = 2


COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "s1": (
        Column("all jobs Running, s", "all_running"),
        Column("creation to Running, median job, s", "running_p50"),
        Column("creation to Running, p99, s", "running_p99"),
        Column("all pods counted, s", "all_counted"),
        Column("pods ended to all Succeeded, s", "end_to_succeeded"),
        Column("operator CPU per job, ms", "operator_ms_per_job", digits=1),
        Column("RSS peak, MiB", "rss_peak", digits=0),
    ),
    "s2": (
        Column("all pods exist, s", "pods_created"),
        Column("Running, s", "running"),
        Column("all pods counted, s", "all_counted"),
        Column("operator CPU, s", "operator_cpu"),
        Column("RSS peak, MiB", "rss_peak", digits=0),
    ),
    "s3": (
        Column("all pods counted, s", "all_counted", digits=1),
        Column("RSS at rest, MiB", "rss", digits=0),
        Column("KiB per pod beyond idle", "kib_per_pod", digits=1),
        Column("CPU at rest, % of a core", "idle_percent"),
        Column("restart: first pod of a new job, s", "restart_first_pod"),
        Column("restart: CPU until rest, s", "restart_operator_cpu"),
    ),
    "s4": (
        Column("failed to new pod, p50, ms", "p50", 1000, 1),
        Column("failed to new pod, p99, ms", "p99", 1000, 1),
    ),
    "s6": (
        Column("first pod of a small job alone, p50, ms", "alone_p50", 1000, 1),
        Column("alone, p99, ms", "alone_p99", 1000, 1),
        Column("beside a big job, p50, ms", "beside_p50", 1000, 1),
        Column("beside, p99, ms", "beside_p99", 1000, 1),
    ),
}

TITLES = {
    "s1": "S1: a burst of jobs",
    "s2": "S2: one big job",
    "s3": "S3 and S5: many pods held, at rest, and a restart",
    "s4": "S4: replacement of a failed pod",
    "s6": "S6: a small job beside a big one",
}


class Group(NamedTuple):
    scenario: str
    operator: str
    sizes: str


def group(records: Sequence[Json]) -> dict[Group, list[Json]]:
    """The runs of each operator in each scenario; where some were undisturbed, only those."""
    groups: dict[Group, list[Json]] = defaultdict(list)
    for record in records:
        if "scenario" in record and not record["audit"]:
            sizes = ", ".join(f"{value} {name}" for name, value in record["sizes"].items())
            groups[Group(record["scenario"], record["operator"], sizes)].append(record)
    return {key: [r for r in runs if r["foreign"] <= MOST_FOREIGN] or runs for key, runs in groups.items()}


def values(runs: Sequence[Json], column: Column) -> list[float]:
    return [run["result"][column.name] * column.factor for run in runs if column.name in run["result"]]


def markdown(records: Sequence[Json]) -> str:
    groups = group(records)
    facts = next((record for record in records if "machine" in record), {})
    lines = [f"Measured on {facts.get('date')}: {facts.get('machine')}, Python {facts.get('python')}.", ""]
    lines += ["Each cell: min / **median** / max, and the ratio of medians to the tuned Go operator.", ""]
    for scenario, columns in COLUMNS.items():
        rows = {key: runs for key, runs in groups.items() if key.scenario == scenario}
        if rows:
            lines += [f"### {TITLES[scenario]}", "", *_table(columns, rows), ""]
    lines += _requests(records)
    return "\n".join(lines)


def _table(columns: Sequence[Column], rows: Mapping[Group, Sequence[Json]]) -> Iterator[str]:
    yield "| operator | sizes | runs | others | " + " | ".join(column.title for column in columns) + " |"
    yield "|" + "---|" * (len(columns) + 4)
    base = next((runs for key, runs in rows.items() if key.operator == BASE), [])
    for key, runs in rows.items():
        others = f"{max(run['foreign'] for run in runs):.0%}"
        cells = [_cell(values(runs, column), values(base, column), column.digits) for column in columns]
        yield f"| {key.operator} | {key.sizes} | {len(runs)} | {others} | " + " | ".join(cells) + " |"


def _cell(found: Sequence[float], base: Sequence[float], digits: int) -> str:
    if not found:
        return "-"
    middle = statistics.median(found)
    text = f"{min(found):.{digits}f} / **{middle:.{digits}f}** / {max(found):.{digits}f}"
    if base and base is not found and statistics.median(base):
        text += f" ({middle / statistics.median(base):.2f})"
    return text


def _requests(records: Sequence[Json]) -> Iterator[str]:
    counted = [record for record in records if record.get("audit")]
    if counted:
        yield "### API requests per job"
        yield ""
    for record in counted:
        for number, phase in enumerate(record["result"]["requests"], 1):
            about = f"{record['operator']} {record['scenario']}, phase {number}"
            each = ", ".join(f"{what} {count:g}" for what, count in phase["requests"].items())
            refused = f"; refused: {phase['refused']}" if phase["refused"] else ""
            yield f"- {about}: **{phase['per_job']:g}** ({each}){refused}"


# Charts ---------------------------------------------------------------------------------------------------------------

WIDTH, BAR, GAP, LABEL = 760, 18, 30, 190
COLOURS = {FLOOR: "#9aa0a6", BASE: "#d0762f", "training-operator-default": "#e3b48c"}
OURS = "#2f6fd0"


def chart(scenario: str, groups: Mapping[Group, Sequence[Json]]) -> str:
    """An SVG: for each column bars of the medians, whiskers from min to max."""
    rows = {key: runs for key, runs in groups.items() if key.scenario == scenario}
    parts: list[str] = []
    y = 40
    for column in COLUMNS[scenario]:
        found = {key.operator: values(runs, column) for key, runs in rows.items()}
        found = {operator: each for operator, each in found.items() if each}
        if not found:
            continue
        parts.append(_text(10, y, column.title, weight="bold"))
        y += 10
        most = max(max(each) for each in found.values()) or 1.0
        for operator, each in found.items():
            parts += _bar(y, operator, each, most, column.digits)
            y += BAR + 4
        y += GAP
    head = _text(10, 18, TITLES[scenario], size=15, weight="bold")
    body = "\n".join([head, *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _bar(y: int, operator: str, found: Sequence[float], most: float, digits: int) -> Iterator[str]:
    scale = (WIDTH - LABEL - 90) / most
    middle = statistics.median(found)
    colour = COLOURS.get(operator, OURS)
    yield _text(LABEL - 8, y + BAR - 5, operator, anchor="end")
    yield f'<rect x="{LABEL}" y="{y}" width="{middle * scale:.1f}" height="{BAR}" fill="{colour}"/>'
    low, high = LABEL + min(found) * scale, LABEL + max(found) * scale
    yield f'<path d="M{low:.1f} {y + BAR / 2}H{high:.1f}" stroke="black"/>'
    yield _text(int(high) + 6, y + BAR - 5, f"{middle:.{digits}f}")


def _text(x: int, y: int, text: str, *, size: int = 12, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def write(records: Sequence[Json], folder: Path) -> str:
    """table.md and an SVG for each scenario that was run; returns the table."""
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(records)
    (folder / "table.md").write_text(text + "\n")
    groups = group(records)
    for scenario in dict.fromkeys(key.scenario for key in groups):
        (folder / f"{scenario}.svg").write_text(chart(scenario, groups))
    return text
