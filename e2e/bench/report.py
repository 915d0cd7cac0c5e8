"""Renders the results of one session: README.md with targets and tables, and one chart per scenario."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from e2e.bench.charts import chart
from e2e.bench.ratios import compare
from e2e.bench.runs import MAX_FOREIGN_CPU, default_sizes
from e2e.bench.scale import COLUMNS as SCALE_COLUMNS
from e2e.bench.scenarios import SCENARIOS
from e2e.bench.targets import COUNT_PREFIX, DI_SERVER, SCALE, STOCK, Runs, judge, rivals, table
from trainop.runtime.objects.metadata import Json


class Column(NamedTuple):
    title: str
    name: str
    factor: float = 1.0
    digits: int = 2


_COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "s1": (
        Column("all jobs Running, s", "all_running"),
        Column("creation to Running, median job, s", "running_p50"),
        Column("creation to Running, p99, s", "running_p99"),
        Column("all pods counted, s", "all_counted"),
        Column("pods ended to all Succeeded, s", "end_to_succeeded"),
        Column("cluster at rest, s", "settled", digits=1),
        Column("operator CPU per job, ms", "operator_ms_per_job", digits=1),
        Column("API server CPU per job, ms", "apiserver_ms_per_job", digits=1),
        Column("etcd CPU per job, ms", "etcd_ms_per_job", digits=1),
        Column("controller manager CPU per job, ms", "kcm_ms_per_job", digits=1),
        Column("RSS peak, MiB", "rss_peak", digits=0),
    ),
    "s2": (
        Column("all pods exist, s", "pods_created"),
        Column("Running, s", "running"),
        Column("all pods counted, s", "all_counted"),
        Column("cluster at rest, s", "settled", digits=1),
        Column("operator CPU, s", "operator_cpu"),
        Column("API server CPU, s", "apiserver_cpu"),
        Column("etcd CPU, s", "etcd_cpu"),
        Column("controller manager CPU, s", "kcm_cpu"),
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
        Column("failed to new pod, p95, ms", "p95", 1000, 1),
    ),
    "s6": (
        Column("first pod of a small job alone, p50, ms", "alone_p50", 1000, 1),
        Column("alone, p95, ms", "alone_p95", 1000, 1),
        Column("beside a big job, p50, ms", "beside_p50", 1000, 1),
        Column("beside, p95, ms", "beside_p95", 1000, 1),
        Column("all pods of the big job exist, s", "big_created"),
    ),
    "services": (
        Column("controller manager CPU per job, few Services, ms", "few_kcm", digits=1),
        Column("many Services, ms", "many_kcm", digits=1),
        Column("API server CPU per job, few Services, ms", "few_apiserver", digits=1),
        Column("many Services, ms", "many_apiserver", digits=1),
        Column("all pods counted, few Services, s", "few_running"),
        Column("many Services, s", "many_running"),
    ),
}

_TITLES = {
    "s1": "S1: a burst of jobs",
    "s2": "S2: one big job",
    "s3": "S3 and S5: many pods held, at rest, and a restart",
    "s4": "S4: replacement of a failed pod",
    "s6": "S6: a small job beside a big one",
    "services": "1,600 Services in one namespace",
}

_PREFIXES = {
    "ssh": "MPIJob, transport ssh",
    "exec": "MPIJob, transport exec",
    "gang": "Gang scheduling with Volcano",
    "webhook": "The operator's webhook called",
}
_CREATION = (
    Column("creation of a job, p50, ms", "create_p50", 1000, 1),
    Column("creation of a job, p99, ms", "create_p99", 1000, 1),
)
_PREFIXED = {scenario: scenario.split("-") for scenario in SCENARIOS if "-" in scenario}
COLUMNS = {
    **_COLUMNS,
    **{
        scenario: (*(_CREATION if prefix == "webhook" else ()), *_COLUMNS[name])
        for scenario, (prefix, name) in _PREFIXED.items()
    },
    SCALE: tuple(Column(title, name, digits=1) for name, title in SCALE_COLUMNS.items() if name != "pods"),
    DI_SERVER: (
        Column("POST of 1,000 replicas, s", "post"),
        Column("the same pods by a bare client, s", "raw"),
        Column("GET, ms", "get", digits=1),
        Column("GET beside 100 clients, p99, ms", "get_p99", digits=1),
        Column("RSS, MiB", "rss", digits=0),
    ),
}
TITLES = {
    **_TITLES,
    **{scenario: f"{_PREFIXES[prefix]}, {_TITLES[name]}" for scenario, (prefix, name) in _PREFIXED.items()},
    SCALE: "Many pods on the embedded store",
    DI_SERVER: "di-server",
}


INTERVALS = (
    "Ratios are medians of pairs of runs that followed one another; in parentheses the interval that contains the true",
    "median, with 94 % confidence of five pairs, 75 % of three and 50 % of two. *No difference*: it contains 1.",
)


def group(records: Sequence[Json]) -> dict[tuple[str, str], list[Json]]:
    """The runs by scenario and operator; disturbed runs are dropped if there are undisturbed ones."""
    groups: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for record in records:
        if "scenario" in record:
            groups[record["scenario"], record["operator"]].append(record)
    return {key: [r for r in runs if r["foreign"] <= MAX_FOREIGN_CPU] or runs for key, runs in groups.items()}


def values(runs: Sequence[Json], column: Column) -> dict[int, float]:
    """The figure of each run by its repetition."""
    shown = [run for run in runs if column.name in run["result"]]
    return {run["repetition"]: run["result"][column.name] * column.factor for run in shown}


def markdown(records: Sequence[Json]) -> str:
    groups = group(records)
    verdicts = list(judge(groups))
    met = sum(verdict.met for verdict in verdicts)
    lines = ["# Ours and the Go operators, side by side", "", *_session_facts(records), "", *INTERVALS, ""]
    lines += [f"{met} of {len(verdicts)} targets are met.", "", *table(verdicts), ""]
    lines += ["Each cell below: min / **median** / max, and the ratio to the tuned Go operator.", ""]
    for scenario, columns in COLUMNS.items():
        rows = {operator: runs for (played, operator), runs in groups.items() if played == scenario}
        if rows:
            lines += [
                f"## {TITLES[scenario]}",
                "",
                *_table(scenario, columns, rows),
                "",
                f"![{scenario}]({scenario}.svg)",
                "",
            ]
    return "\n".join([*lines, *_requests(groups)])


def _session_facts(records: Sequence[Json]) -> Iterator[str]:
    facts = next((record for record in records if "machine" in record), {})
    versions = ", ".join(f"{name} {version}" for name, version in facts.get("versions", {}).items())
    yield f"Measured from {facts.get('date')} on {facts.get('machine')}; {versions}."
    yield "Written by `python -m e2e.bench report`; [what is measured, and how](../README.md)."
    played = [record for record in records if "scenario" in record and record["operator"] != STOCK]
    if any(record["sizes"] != default_sizes(record["scenario"].removeprefix(COUNT_PREFIX)) for record in played):
        yield "Not all was played at the sizes that the targets are meant for."


def _table(scenario: str, columns: Sequence[Column], rows: Mapping[str, Sequence[Json]]) -> Iterator[str]:
    columns = [column for column in columns if any(values(runs, column) for runs in rows.values())]
    yield "| operator | sizes | runs | others | " + " | ".join(column.title for column in columns) + " |"
    yield "|" + "---|" * (len(columns) + 4)
    base = rows.get(rivals(scenario)[1], [])
    for operator, runs in rows.items():
        sizes = "; ".join(dict.fromkeys(_sizes(run) for run in runs))
        others = f"{max(run['foreign'] for run in runs):.0%}"
        cells = [_cell(values(runs, column), values(base, column), column.digits) for column in columns]
        yield f"| {operator} | {sizes} | {len(runs)} | {others} | " + " | ".join(cells) + " |"


def _sizes(run: Json) -> str:
    return ", ".join(f"{value} {name}" for name, value in run["sizes"].items())


def _cell(found: Mapping[int, float], base: Mapping[int, float], digits: int) -> str:
    if not found:
        return "-"
    each = found.values()
    text = f"**{statistics.median(each):.{digits}f}**"
    if len(each) > 1:
        text = f"{min(each):.{digits}f} / {text} / {max(each):.{digits}f}"
    ratio = compare(found, base) if found != base else None
    return f"{text}; {ratio}" if ratio else text


def _requests(groups: Runs) -> Iterator[str]:
    """Requests per job from the audit log, by the phases that `Harness.mark` separates."""
    counted = [run for (scenario, _), runs in groups.items() if scenario.startswith(COUNT_PREFIX) for run in runs]
    if counted:
        yield "## API requests per job"
        yield ""
    for run in counted:
        for number, phase in enumerate(run["result"].get("requests", ()), 1):
            each = ", ".join(f"{what} {count:g}" for what, count in phase["requests"].items())
            refused = f"; refused in all: {phase['refused']}" if phase["refused"] else ""
            about = f"{run['operator']} {run['scenario'].removeprefix(COUNT_PREFIX)} ({_sizes(run)}), phase {number}"
            cluster = ", ".join(f"{what} {count:g}" for what, count in phase["cluster"].items())
            theirs = f"; by the cluster's controllers: {cluster}" if cluster else ""
            yield f"- {about}: **{phase['per_job']:g}** ({each}){refused}{theirs}"


def write(records: Sequence[Json], folder: Path) -> str:
    """Writes README.md and one SVG per scenario; returns the text of README.md."""
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(records)
    (folder / "README.md").write_text(text + "\n")
    groups = group(records)
    for scenario, columns in COLUMNS.items():
        rows = {operator: runs for (played, operator), runs in groups.items() if played == scenario}
        if rows:
            figures = {
                column.title: {operator: list(values(runs, column).values()) for operator, runs in rows.items()}
                for column in columns
            }
            (folder / f"{scenario}.svg").write_text(chart(TITLES[scenario], figures))
    return text
