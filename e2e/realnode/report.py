"""The report of `make e2e`: one JSON record per test in `records/`, and `index.html`, which needs no other file."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from e2e.cluster.releases import find_release
from e2e.realnode import drawing
from e2e.realnode.images import ROOT

Json = dict[str, Any]
FOLDER = ROOT / "e2e/report"
RECORDS = FOLDER / "records"
STYLE = """
:root { color-scheme: light; --line: #e4e7ec; --soft: #667085; --ink: #1d2939; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: #fcfcfd; margin: 0 auto; max-width: 1180px;
  padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2.2rem 0 .4rem; }
p.facts { color: var(--soft); margin: .2rem 0 1.2rem; } .legend span { margin-right: 1rem; white-space: nowrap; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em; }
article { background: #fff; border: 1px solid var(--line); border-radius: 10px; margin: .6rem 0; padding: .8rem 1rem; }
.row { display: grid; grid-template-columns: 1.1rem minmax(0, 19rem) minmax(0, 1fr) 11.5rem; gap: .9rem;
  align-items: start; }
.dot { width: .75rem; height: .75rem; border-radius: 50%; margin-top: .4rem; } .passed { background: #32a467; }
.failed { background: #d92d20; } .title { font-weight: 600; } .sub { color: var(--soft); font-size: .85rem; }
.kind { background: #eef4ff; color: #3538cd; border-radius: 5px; padding: .05rem .4rem; font-size: .8rem;
  margin-right: .3rem; white-space: nowrap; }
.parts a { color: inherit; margin-right: 1rem; white-space: nowrap; }
.parts a.failing { color: #d92d20; font-weight: 600; }
table.seen { margin: .5rem 0 0 2rem; width: calc(100% - 2rem); font-size: .87rem; } table.seen td { width: 50%; }
.more { display: flex; flex-wrap: wrap; gap: 0 1.2rem; margin-left: 2rem; } .more details[open] { flex-basis: 100%; }
details { margin-top: .5rem; font-size: .87rem; min-width: 0; } summary { cursor: pointer; color: var(--soft); }
pre { background: #f9fafb; border: 1px solid var(--line); border-radius: 6px; padding: .6rem; overflow-x: auto;
  font-size: .78rem; line-height: 1.4; max-height: 24rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top;
  padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--line); font-weight: normal; }
th { color: var(--soft); } svg { display: block; max-width: 100%; } svg text { font: 11px system-ui, sans-serif; }
@media (max-width: 800px) { .row { grid-template-columns: 1.1rem 1fr; } .row > :nth-child(n+3) { grid-column: 2; } }
"""


def begin() -> None:
    RECORDS.mkdir(parents=True, exist_ok=True)


def forget(tests: set[tuple[str, str]], *, whole: bool) -> None:
    """Removes the records of tests (part and name) that run again, with `whole` those of their parts, and of parts
    that no longer exist."""
    present = {path.stem for path in Path(__file__).parent.glob("test_*.py")}
    again = {path_of(*test) for test in tests}
    for path in RECORDS.glob("*.json"):
        part = path.name.partition("--")[0]
        if path in again or part not in present or (whole and part in {part for part, _ in tests}):
            path.unlink()


def path_of(part: str, name: str) -> Path:
    return RECORDS / f"{part}--{''.join(c if c.isalnum() else '-' for c in name)}.json"


def write_record(part: str, name: str, record: Json) -> None:
    begin()
    path_of(part, name).write_text(json.dumps({"part": part, **record}, indent=1), encoding="utf-8")


def render() -> Path | None:
    """Writes the page from all records, also those of earlier runs; None if there are none."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in RECORDS.glob("*.json")]
    if not records:
        return None
    records.sort(key=lambda record: (record["part"], record["begun"]))
    path = FOLDER / "index.html"
    path.write_text("\n".join(_page(records)), encoding="utf-8")
    return path


def _page(records: Sequence[Json]) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    yield f"<title>trainop on a real node</title><style>{STYLE}</style>"
    yield "<h1>trainop on a real node</h1>"
    passed = sum(record["result"] == "passed" for record in records)
    seconds = sum(record["seconds"] for record in records)
    yield (
        f'<p class="facts">{passed} of {len(records)} passed in {_duration(seconds)} · Kubernetes'
        f" {find_release().version}, kubelet, containerd · {escape(_commit())}"
        f" · {time.strftime('%Y-%m-%d %H:%M')} · {escape(platform.release())}</p>"
    )
    yield f'<p class="parts sub">{_parts(records)}</p><p class="legend sub">{drawing.legend()}</p>'
    part = None
    for record in records:
        if record["part"] != part:
            part = record["part"]
            yield f'<h2 id="{escape(part)}">{_name(part)}</h2>'
        yield from _article(record)
    yield "</html>"


def _parts(records: Sequence[Json]) -> str:
    """A link to each part, with the number of its tests that passed."""
    links = []
    for part, tests in groupby(records, lambda record: str(record["part"])):
        results = [test["result"] == "passed" for test in tests]
        failing = "" if all(results) else ' class="failing"'
        links.append(f'<a href="#{escape(part)}"{failing}>{_name(part)} {sum(results)}/{len(results)}</a>')
    return "\n".join(links)


def _name(part: str) -> str:
    return escape(part.removeprefix("test_").replace("_", " "))


def _article(record: Json) -> Iterator[str]:
    frameworks = ", ".join(record["frameworks"]) or "no framework"
    kinds = "".join(f'<span class="kind">{escape(kind)}</span>' for kind in record["kinds"])
    yield f'<article><div class="row"><div class="dot {record["result"]}" title="{record["result"]}"></div>'
    yield f'<div><div class="title">{escape(record["title"])}</div><div class="sub">{kinds}{escape(frameworks)}</div>'
    yield f'<div class="sub">{record["result"]} in {_duration(record["seconds"])}</div></div>'
    yield f"<div>{drawing.timeline(record)}</div><div>{drawing.sparkline(record['loss'])}</div></div>"
    for remark in record["remarks"]:
        yield f'<div class="sub">{escape(remark)}</div>'
    if record["failure"]:
        yield f"<details open><summary>failure</summary><pre>{escape(record['failure'])}</pre></details>"
    if record["expectations"]:
        yield from _rows(("wanted", "seen"), record["expectations"], "seen")
    yield '<div class="more">'
    yield from _table("steps", ("s", "reached"), [(f"{at:.1f}", what) for at, what in record["waited"]])
    conditions = [
        (one["lastTransitionTime"][11:19], job["name"], f"{one['type']}={one['status']}", one.get("message") or "")
        for job in record["jobs"]
        for one in job["conditions"]
    ]
    yield from _table("conditions", ("since", "job", "condition", "message"), conditions)
    events = [
        (
            one["time"][11:19],
            one["object"],
            f"{one['reason']}, {one['count']} times" if (one["count"] or 1) > 1 else one["reason"],
            one["message"],
        )
        for one in record["events"]
    ]
    yield from _table("events", ("time", "object", "reason", "message"), events)
    for name, log in record["logs"].items():
        yield f"<details><summary>log of {escape(name)}</summary><pre>{escape(log)}</pre></details>"
    yield "</div></article>"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """A table that is opened by a click."""
    if rows:
        yield f"<details><summary>{title} ({len(rows)})</summary>"
        yield from _rows(head, rows)
        yield "</details>"


def _rows(head: Sequence[str], rows: Sequence[Sequence[Any]], style: str = "") -> Iterator[str]:
    yield f'<table class="{style}"><tr>' + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>"
    yield "</table>"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", ROOT, "log", "-1", "--format=%h %s"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "no commit"
