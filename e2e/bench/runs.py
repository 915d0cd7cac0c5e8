"""Runs scenarios with operators in alternation and stores every result.

Results are JSON lines: first a description of the machine, then one line per run. One file is one session; only results
of the same session are compared. The first repetition of all scenarios comes before the second of any, so that a
session that reaches its limit of time has measured everything at least once.
"""

from __future__ import annotations

import asyncio
import math
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from e2e.bench.cluster import ACCOUNT
from e2e.bench.floor import FLOORS, measure_floor
from e2e.bench.harness import BenchError, open_harness
from e2e.bench.operators import OPERATORS, ROOT, Operator, peer_versions
from e2e.bench.programs import PROGRAMS, measure_with
from e2e.bench.requests import count_requests
from e2e.bench.scenarios import SCENARIOS
from e2e.bench.targets import COUNT_PREFIX
from e2e.cluster.places import ClusterError
from e2e.cluster.releases import find_release
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import Json

MAX_FOREIGN_CPU = 0.04
"""Share of the machine's CPU that other processes may use; above it a run counts as disturbed."""

PHASES = ("cpu", "cpu_end", "cpu_restart")
"""The CPU seconds of a run's phases, in its result."""
RUN_TIMEOUT, PROGRAM_TIMEOUT = 600.0, 1500.0
"""Timeouts of one run, and of one of `PROGRAMS`, in seconds."""

RUN_ERRORS = (
    ApiError,
    BenchError,
    ClusterError,
    ExceptionGroup,
    LookupError,
    OSError,
    TimeoutError,
    aiohttp.ClientError,
)
"""Errors that fail one run; the session continues."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One scenario, optionally with `COUNT_PREFIX`, and the operators, which alternate."""

    operators: tuple[str, ...]
    scenario: str
    repetitions: int = 1
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes that replace the scenario's defaults."""
    once: tuple[str, ...] = ()
    """Operators that take part in the first repetition only."""


async def run(plans: Sequence[Plan], out: Path, minutes: float = math.inf) -> None:
    """Performs the runs of all plans and appends each result to `out`. A failed run is reported and skipped. After
    `minutes`, no further repetition of a scenario begins."""
    end, first = time.monotonic() + 60 * minutes, _count_repetitions(out)
    for repetition in range(max(plan.repetitions for plan in plans)):
        for plan in (plan for plan in plans if repetition < plan.repetitions):
            if time.monotonic() > end:
                print(f"{plan.scenario} #{repetition} is left out: {minutes:g} minutes are over", flush=True)
                continue
            for operator in plan.operators if repetition else (*plan.operators, *plan.once):
                await _run_and_record(plan, operator, first + repetition, out)


def _count_repetitions(session: Path) -> int:
    """The repetitions that a session has already, which later ones continue."""
    records = read_records(session) if session.exists() else []
    return max((record["repetition"] + 1 for record in records if "scenario" in record), default=0)


async def _run_and_record(plan: Plan, operator: str, repetition: int, out: Path) -> None:
    began, title = time.monotonic(), f"{plan.scenario} {operator} #{repetition}"
    try:
        async with asyncio.timeout(PROGRAM_TIMEOUT if plan.scenario in PROGRAMS else RUN_TIMEOUT):
            record = await run_one(plan, operator, repetition)
    except RUN_ERRORS as error:
        print(f"{title} failed: {error!r}", flush=True)
        return
    wall = time.monotonic() - began
    append_record(record | {"wall": round(wall, 1)}, out)
    brief = {name: round(value, 2) for name, value in record["result"].items() if isinstance(value, int | float)}
    print(f"{title} [{wall:.0f} s, others {record['foreign']:.0%}] {brief}", flush=True)


def append_record(record: Json, out: Path) -> None:
    """Appends a record to a session; a new session starts with the description of the machine."""
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = not out.exists()
    with out.open("ab") as lines:
        for each in [describe_machine(), record] if fresh else [record]:
            lines.write(msgspec.json.encode(each) + b"\n")


def read_records(path: Path) -> list[Json]:
    """Reads all records of a session, as written by `append_record`."""
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


async def run_one(plan: Plan, name: str, repetition: int = 0) -> Json:
    """The record of one run."""
    scenario = plan.scenario.removeprefix(COUNT_PREFIX)
    sizes = {**default_sizes(scenario), **plan.sizes}
    if scenario in PROGRAMS:
        result = await measure_with(PROGRAMS[scenario], sizes["pods"])
    elif name in FLOORS:
        result = await measure_floor(name, sizes["jobs"], sizes["workers"], endpoints=SCENARIOS[scenario].endpoints)
    else:
        sizes |= OPERATORS[name].sizes.get(scenario, {})
        result = await _perform(scenario, OPERATORS[name], sizes, audit=plan.scenario.startswith(COUNT_PREFIX))
    return {
        "scenario": plan.scenario,
        "operator": name,
        "repetition": repetition,
        "sizes": sizes,
        "foreign": foreign_share(result),
        "result": result,
    }


def default_sizes(scenario: str) -> Mapping[str, int]:
    return PROGRAMS[scenario].sizes if scenario in PROGRAMS else SCENARIOS[scenario].sizes


async def _perform(scenario: str, operator: Operator, sizes: Mapping[str, int], *, audit: bool) -> Json:
    setting = SCENARIOS[scenario]
    async with open_harness(operator, audit=audit, endpoints=setting.endpoints) as harness:
        result = await setting.perform(harness, sizes)
        if audit:
            result["requests"] = count_requests(harness.cluster.audit_log, harness.marks, sizes["jobs"], ACCOUNT)
        result["counts"] = await harness.metrics()
    return result


def foreign_share(result: Mapping[str, Any]) -> float:
    """The share of the machine's CPU used by processes outside the benchmark, in the worst phase."""
    phases = [phase for name, phase in result.items() if name in PHASES]
    shares = [phase["other"] / phase["t"] / (os.cpu_count() or 1) for phase in phases if phase["t"]]
    return float(round(max([*shares, 0.0]), 3))


def describe_machine() -> Json:
    """The description of the machine and of software versions for the report."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "machine": f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, Linux {platform.release()}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": {
            "trainop": _commit(),
            "Python": platform.python_version(),
            **{name: version(name) for name in ("aiohttp", "msgspec", "uvloop")},
            "kube-apiserver": find_release().version,
            **peer_versions(),
        },
    }


def _commit() -> str:
    """The commit of the checkout, with `+` if it has uncommitted changes."""
    command = ["git", "describe", "--always", "--dirty=+"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
