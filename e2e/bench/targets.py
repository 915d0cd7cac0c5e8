"""The performance targets of our operator, as ratios of medians or absolute figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from trainop.runtime.objects.metadata import Json

OURS, LEADER, BASE = "trainop", "trainop-leader", "training-operator-tuned"
STOCK, FLOOR = "training-operator-default", "floor"
RIVALS = {
    "ssh": ("trainop-ssh", "mpi-operator-tuned"),
    "exec": ("trainop-exec", "training-operator-exec"),
}
"""Transport of MPIJob, which is the prefix of its scenarios -> our operator and the one that it is compared with."""


def rivals(scenario: str) -> tuple[str, str]:
    """Our operator and the one that it is compared with."""
    return RIVALS.get(scenario.removeprefix(COUNT_PREFIX).partition("-")[0], (OURS, BASE))


COUNT_PREFIX = "count-"
"""Prefix of a scenario's name: requests are counted with the audit log, which slows down the API server."""

Runs = Mapping[tuple[str, str], Sequence[Json]]
"""(scenario, operator) -> runs; runs that counted requests have the scenario `count-SCENARIO`."""


class Target(NamedTuple):
    """The figure of `ours` must be at most `limit`.

    With `base`, it is divided by the figure of that operator; with `own_base`, by another figure of the same runs.
    """

    title: str
    scenario: str
    figure: Callable[[Json], float]
    limit: float
    base: str = ""
    ours: str = OURS
    digits: int = 2
    own_base: Callable[[Json], float] | None = None


class Verdict(NamedTuple):
    target: Target
    ours: float
    base: float | None
    """The figure that it is divided by."""

    @property
    def value(self) -> float:
        return self.ours / self.base if self.base else self.ours

    @property
    def met(self) -> bool:
        return self.value <= self.target.limit


def _result(name: str, factor: float = 1.0) -> Callable[[Json], float]:
    return lambda record: float(record["result"][name]) * factor


def _requests(record: Json) -> float:
    return float(sum(phase["per_job"] for phase in record["result"]["requests"]))


def _per_unit(name: str, size: str) -> Callable[[Json], float]:
    """Milliseconds per job or pod, because rate-limited operators are measured at a smaller size."""
    return lambda record: 1000 * float(record["result"][name]) / record["sizes"][size]


def _mpi_targets(transport: str, *, requests: int | None = None) -> Iterator[Target]:
    ours, base = RIVALS[transport]
    s1, s2, s3 = (f"{transport}-{name}" for name in ("s1", "s2", "s3"))
    if requests:
        title = f"MPIJob, {transport}, S1: API requests per job, creation to Succeeded"
        yield Target(title, f"{COUNT_PREFIX}{s1}", _requests, requests, ours=ours, digits=1)
    about = f"MPIJob, {transport}"
    yield Target(f"{about}, S1: until all jobs run, s", s1, _result("all_running"), 0.9, base, ours)
    cpu = _result("operator_ms_per_job")
    yield Target(f"{about}, S1: operator CPU per job, ms", s1, cpu, 0.6, base, ours, digits=1)
    yield Target(f"{about}, S2: until all workers are counted, s", s2, _result("all_counted"), 0.9, base, ours)
    yield Target(f"{about}, S3: RSS with 10,000 pods, MiB", s3, _result("rss"), 0.3, base, ours, digits=0)


TARGETS = (
    Target("S1: API requests per job, creation to Succeeded", "count-s1", _requests, 20, digits=1),
    Target("S1: the same with `--service-mode=leader`", "count-s1", _requests, 13, ours=LEADER, digits=1),
    Target("S1: creation to Running, median job, s", "s1", _result("running_p50"), 0.3, BASE),
    Target("S1: until all jobs run, s", "s1", _result("all_running"), 0.5, BASE),
    Target("S1: the same over the bare client's", "s1", _result("all_running"), 1.15, FLOOR),
    Target("S1: operator CPU per job, ms", "s1", _result("operator_ms_per_job"), 0.4, BASE, digits=1),
    Target("S2: until all workers of one job are counted running, s", "s2", _result("all_counted"), 0.5, BASE),
    Target("S3: RSS with 10,000 pods, MiB", "s3", _result("rss"), 0.25, BASE, digits=0),
    Target("S3: KiB per pod beyond the idle process", "s3", _result("kib_per_pod"), 8, digits=1),
    Target("S3: restart until a new job's first pod, s", "s3", _result("restart_first_pod"), 0.35, BASE),
    Target("S4: failed pod to replacement, p50, ms", "s4", _result("p50", 1000), 1, BASE, digits=1),
    Target("S4: failed pod to replacement, p95, ms", "s4", _result("p95", 1000), 1, BASE, digits=1),
    Target("S5: CPU at rest with 1,250 jobs, % of a core", "s3", _result("idle_percent"), 2, BASE),
    Target("S1: ms per job until all run, over the stock flags'", "s1", _per_unit("all_running", "jobs"), 1 / 8, STOCK),
    Target(
        "S2: ms per pod until all are counted, over the stock flags'",
        "s2",
        _per_unit("all_counted", "workers"),
        1 / 8,
        STOCK,
    ),
    Target(
        "S6: first pod of a small job beside one of 5,000 pods over alone, p99, ms",
        "s6",
        _result("beside_p99", 1000),
        2,
        own_base=_result("alone_p99", 1000),
        digits=1,
    ),
    *_mpi_targets("ssh", requests=16),
    *_mpi_targets("exec"),
)


def judge(runs: Runs, targets: Sequence[Target] = TARGETS) -> Iterator[Verdict]:
    """Verdicts on all targets for which the necessary runs exist."""
    for target in targets:
        ours = runs.get((target.scenario, target.ours))
        others = runs.get((target.scenario, target.base)) if target.base else None
        if not ours or (target.base and not others):
            continue
        base = None
        if others:
            base = statistics.median(map(target.figure, others))
        elif target.own_base:
            base = statistics.median(map(target.own_base, ours))
        yield Verdict(target, statistics.median(map(target.figure, ours)), base)


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield "| target | compared with | ours | ratio | at most | |"
    yield "|---|---|---|---|---|---|"
    for verdict in verdicts:
        target = verdict.target
        base = "" if verdict.base is None else f"{verdict.base:.{target.digits}f} ({target.base or 'alone'})"
        ratio = "" if verdict.base is None else f"{verdict.value:.2f}"
        beyond = 100 * (verdict.value / target.limit - 1)
        outcome = "met" if verdict.met else f"**missed by {beyond:.{1 if beyond < 10 else 0}f} %**"
        ours = f"{verdict.ours:.{target.digits}f}"
        yield f"| {target.title} | {base} | {ours} | {ratio} | {target.limit:.3g} | {outcome} |"
