"""Runs what was asked for, ours and the peers alternately, and keeps every result."""

from __future__ import annotations

import itertools
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from e2e.bench.floor import measure_floor
from e2e.bench.operators import OPERATORS
from e2e.bench.requests import count_requests
from e2e.bench.scenarios import SCENARIOS
from e2e.bench.stage import BenchError, open_stage
from trainop.runtime.objects import Json

FLOOR = "floor"
MOST_FOREIGN = 0.04
"""Share of the machine that others may use before a run counts as disturbed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One scenario; the operators take turns."""

    operators: tuple[str, ...]
    scenario: str
    repetitions: int = 3
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Those other than the usual."""
    audit: bool = False
    """Count requests by the audit log, which costs the API server time."""


async def run(plan: Plan, out: Path) -> list[Json]:
    """All runs of a plan; what is done is in `out` at any time. A run that fails is told and left out."""
    records: list[Json] = [machine()]
    for repetition, operator in itertools.product(range(plan.repetitions), plan.operators):
        began = time.monotonic()
        try:
            record = await run_one(plan, operator)
        except (BenchError, ConnectionError, TimeoutError) as error:
            print(f"{plan.scenario} {operator} #{repetition} failed: {error}", flush=True)
            continue
        wall = time.monotonic() - began
        records.append(record | {"repetition": repetition, "wall": round(wall, 1)})
        keep(records, out)
        brief = {name: round(value, 2) for name, value in record["result"].items() if isinstance(value, int | float)}
        print(
            f"{plan.scenario} {operator} #{repetition} [{wall:.0f} s, others {record['foreign']:.0%}] {brief}",
            flush=True,
        )
    return records


def keep(records: list[Json], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(records)))


async def run_one(plan: Plan, name: str) -> Json:
    perform, usual = SCENARIOS[plan.scenario]
    sizes = {**usual, **plan.sizes}
    if name == FLOOR:
        result = await measure_floor(sizes["jobs"], sizes["workers"])
    else:
        operator = OPERATORS[name]
        sizes |= operator.sizes.get(plan.scenario, {})
        async with open_stage(operator, audit=plan.audit) as stage:
            result = await perform(stage, sizes)
            if plan.audit:
                result["requests"] = count_requests(stage.arena.audit_log, stage.marks, sizes["jobs"])
            result["counts"] = await stage.metrics()
    return {
        "scenario": plan.scenario,
        "operator": name,
        "sizes": sizes,
        "audit": plan.audit,
        "foreign": foreign(result),
        "result": result,
    }


def foreign(result: Mapping[str, Any]) -> float:
    """The share of the machine that processes outside the benchmark used, in the worst phase."""
    phases = [phase for name, phase in result.items() if name.startswith("cpu")]
    shares = [phase["other"] / phase["t"] / (os.cpu_count() or 1) for phase in phases if phase["t"]]
    return float(round(max([*shares, 0.0]), 3))


def machine() -> Json:
    """What a reader has to know beside the figures."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "machine": f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
    }
