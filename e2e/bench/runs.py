"""Runs scenarios with operators in alternation and stores every result.

Results are JSON lines: first a description of the machine, then one line per run. One file is one session; only results
of the same session are compared.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from e2e.bench.floor import measure_floor
from e2e.bench.harness import BenchError, open_harness
from e2e.bench.operators import OPERATORS, ROOT, peer_versions
from e2e.bench.requests import count_requests
from e2e.bench.scenarios import SCENARIOS
from e2e.bench.targets import COUNT_PREFIX, FLOOR
from e2e.cluster.places import VERSION, ClusterError
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import Json

MAX_FOREIGN_CPU = 0.04
"""Share of the machine's CPU that other processes may use; above it a run counts as disturbed."""

RUN_TIMEOUT = 420.0
"""Timeout of one run in seconds."""

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
    repetitions: int = 3
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes that replace the scenario's defaults."""


async def run(plan: Plan, out: Path) -> None:
    """Performs all runs of a plan and appends each result to `out`. A failed run is reported and skipped."""
    for repetition, operator in itertools.product(range(plan.repetitions), plan.operators):
        began = time.monotonic()
        try:
            async with asyncio.timeout(RUN_TIMEOUT):
                record = await run_one(plan, operator)
        except RUN_ERRORS as error:
            print(f"{plan.scenario} {operator} #{repetition} failed: {error!r}", flush=True)
            continue
        wall = time.monotonic() - began
        append_record(record | {"wall": round(wall, 1)}, out)
        brief = {name: round(value, 2) for name, value in record["result"].items() if isinstance(value, int | float)}
        print(
            f"{plan.scenario} {operator} #{repetition} [{wall:.0f} s, others {record['foreign']:.0%}] {brief}",
            flush=True,
        )


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


async def run_one(plan: Plan, name: str) -> Json:
    scenario, audit = plan.scenario.removeprefix(COUNT_PREFIX), plan.scenario.startswith(COUNT_PREFIX)
    perform, defaults = SCENARIOS[scenario]
    sizes = {**defaults, **plan.sizes}
    if name == FLOOR:
        result = await measure_floor(sizes["jobs"], sizes["workers"])
    else:
        operator = OPERATORS[name]
        sizes |= operator.sizes.get(scenario, {})
        async with open_harness(operator, audit=audit) as harness:
            result = await perform(harness, sizes)
            if audit:
                result["requests"] = count_requests(harness.cluster.audit_log, harness.marks, sizes["jobs"])
            result["counts"] = await harness.metrics()
    return {
        "scenario": plan.scenario,
        "operator": name,
        "sizes": sizes,
        "foreign": foreign_share(result),
        "result": result,
    }


def foreign_share(result: Mapping[str, Any]) -> float:
    """The share of the machine's CPU used by processes outside the benchmark, in the worst phase."""
    phases = [phase for name, phase in result.items() if name.startswith("cpu")]
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
            "kube-apiserver": VERSION,
            **peer_versions(),
        },
    }


def _commit() -> str:
    """The commit of the checkout, with `+` if it has uncommitted changes."""
    command = ["git", "describe", "--always", "--dirty=+"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
