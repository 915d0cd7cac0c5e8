"""The figures of the report as SVG: what each pod did over time, and the loss by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from typing import Any

Json = dict[str, Any]
COLOURS = {
    "Pending": "#d0d5dd",
    "Running": "#84adff",
    "Succeeded": "#32a467",
    "Failed": "#d92d20",
    "Terminating": "#fdb022",
    "waiting or restarting": "#f79009",
}
WIDTH, BAR, NAMES = 520, 13, 150
SPARK_WIDTH, SPARK_HEIGHT = 180, 52
MOST_PODS = 24


def legend() -> str:
    return "".join(f'<span><i style="background:{colour}"></i>{name}</span>' for name, colour in COLOURS.items())


def timeline(record: Json) -> str:
    """One bar per pod from its creation to its end, with the job's conditions above."""
    begun, seconds = record["begun"], max(record["seconds"], 1.0)
    scale = (WIDTH - NAMES - 6) / seconds
    pods = [pod for pod in record["pods"] if pod["phases"]][:MOST_PODS]
    marks = list(_conditions(record, begun, seconds))
    top = 16 if marks else 2
    height = top + len(pods) * (BAR + 3) + 15
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" aria-label="timeline">']
    for row, pod in enumerate(pods):
        parts += _pod(pod, top + row * (BAR + 3), begun, seconds, scale)
    parts += _marks(marks, scale, height)
    parts.append(f'<text x="{NAMES}" y="{height - 3}" fill="#667085">0</text>')
    parts.append(f'<text x="{WIDTH}" y="{height - 3}" fill="#667085" text-anchor="end">{seconds:.0f} s</text></svg>')
    return "".join(parts)


def _pod(pod: Json, y: int, begun: float, seconds: float, scale: float) -> Iterator[str]:
    name = pod["name"] if len(pod["name"]) <= 22 else f"…{pod['name'][-21:]}"
    restarts = f" ↻{pod['restarts']}" if pod["restarts"] else ""
    yield f'<text x="{NAMES - 6}" y="{y + BAR - 3}" text-anchor="end">{escape(name)}{restarts}</text>'
    phases = pod["phases"]
    ends = [*(one["time"] for one in phases[1:]), begun + seconds]
    for one, end in zip(phases, ends, strict=True):
        if one["phase"] == "Deleted":
            continue
        start = max(one["time"] - begun, 0.0)
        width = max((end - begun - start) * scale, 1.0)
        colour = COLOURS.get(one["phase"], COLOURS["waiting or restarting"])
        thin = one["phase"] in {"Succeeded", "Failed"}
        tip = f"<title>{escape(pod['name'])}: {escape(one['phase'])} at {start:.1f} s</title>"
        yield (
            f'<rect x="{NAMES + start * scale:.1f}" y="{y + (BAR // 2 - 2 if thin else 0)}" width="{width:.1f}" '
            f'height="{4 if thin else BAR}" fill="{colour}" rx="2">{tip}</rect>'
        )


def _conditions(record: Json, begun: float, seconds: float) -> Iterator[tuple[float, str]]:
    """Those that hold at the end; their times have a resolution of one second."""
    for job in record["jobs"]:
        for one in job["conditions"]:
            if one["type"] in {"Running", "Succeeded", "Failed", "Suspended"} and one.get("lastTransitionTime"):
                at = datetime.fromisoformat(one["lastTransitionTime"]).timestamp() - begun
                yield min(max(at, 0.0), seconds), one["type"] if one["status"] == "True" else f"not {one['type']}"


def _marks(marks: Sequence[tuple[float, str]], scale: float, height: int) -> Iterator[str]:
    named: dict[int, list[str]] = {}
    for at, name in marks:
        if not name.startswith("not "):
            named.setdefault(int(NAMES + at * scale), []).append(name)
    for x, names in named.items():
        anchor = "end" if x > WIDTH - 70 else "middle"
        yield f'<path d="M{x} 14V{height - 14}" stroke="#98a2b3" stroke-dasharray="2 3"/>'
        yield f'<text x="{x}" y="11" fill="#475467" text-anchor="{anchor}">{escape(", ".join(names))}</text>'


def sparkline(loss: Sequence[Sequence[float]]) -> str:
    """The loss by step, with its first and last value."""
    if len(loss) < 2:
        return ""
    steps, values = [float(one[0]) for one in loss], [float(one[1]) for one in loss]
    low, high = min(values), max(values)
    wide, tall = (steps[-1] - steps[0]) or 1.0, (high - low) or 1.0
    points = " ".join(
        f"{3 + (step - steps[0]) / wide * (SPARK_WIDTH - 6):.1f},{3 + (high - value) / tall * (SPARK_HEIGHT - 6):.1f}"
        for step, value in zip(steps, values, strict=True)
    )
    return (
        f'<svg viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT + 14}" width="{SPARK_WIDTH}" role="img" aria-label="loss">'
        f'<polyline points="{points}" fill="none" stroke="#3538cd" stroke-width="1.6"/>'
        f'<text x="3" y="{SPARK_HEIGHT + 11}" fill="#667085">{values[0]:.3g} → {values[-1]:.3g}, '
        f"{steps[-1]:.0f} steps</text></svg>"
    )
