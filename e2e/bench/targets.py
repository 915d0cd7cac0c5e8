"""What ours has to reach, as a ratio of medians or as a figure of its own."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from trainop.runtime.objects.metadata import Json

OURS, LEADER, BASE = "trainop", "trainop-leader", "training-operator-tuned"
STOCK, FLOOR = "training-operator-default", "floor"

Runs = Mapping[tuple[str, str], Sequence[Json]]
"""(scenario, operator) -> its runs; those that counted requests under the scenario `count-SCENARIO`."""


class Target(NamedTuple):
    """`figure` of `ours`, over `other`'s or over `than` of its own if there is one, may be `most`."""

    title: str
    scenario: str
    figure: Callable[[Json], float]
    most: float
    other: str = ""
    ours: str = OURS
    digits: int = 2
    than: Callable[[Json], float] | None = None


class Verdict(NamedTuple):
    target: Target
    ours: float
    other: float | None
    """What it is compared with."""

    @property
    def value(self) -> float:
        return self.ours / self.other if self.other else self.ours

    @property
    def met(self) -> bool:
        return self.value <= self.target.most


def _result(name: str, factor: float = 1.0) -> Callable[[Json], float]:
    return lambda record: float(record["result"][name]) * factor


def _requests(record: Json) -> float:
    return float(sum(phase["per_job"] for phase in record["result"]["requests"]))


def _each(name: str, size: str) -> Callable[[Json], float]:
    """Milliseconds for one of so many: what is rate-limited is measured at a smaller size."""
    return lambda record: 1000 * float(record["result"][name]) / record["sizes"][size]


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
    Target("S4: failed pod to replacement, p99, ms", "s4", _result("p99", 1000), 1, BASE, digits=1),
    Target("S5: CPU at rest with 1,250 jobs, % of a core", "s3", _result("idle_percent"), 2, BASE),
    Target("S1: ms per job until all run, over the stock flags'", "s1", _each("all_running", "jobs"), 1 / 8, STOCK),
    Target(
        "S2: ms per pod until all are counted, over the stock flags'",
        "s2",
        _each("all_counted", "workers"),
        1 / 8,
        STOCK,
    ),
    Target(
        "S6: first pod of a small job beside one of 5,000 pods over alone, p99, ms",
        "s6",
        _result("beside_p99", 1000),
        2,
        than=_result("alone_p99", 1000),
        digits=1,
    ),
)


def judge(runs: Runs, targets: Sequence[Target] = TARGETS) -> Iterator[Verdict]:
    """Those targets for which everything was measured."""
    for target in targets:
        ours = runs.get((target.scenario, target.ours))
        others = runs.get((target.scenario, target.other)) if target.other else None
        if not ours or (target.other and not others):
            continue
        other = None
        if others:
            other = statistics.median(map(target.figure, others))
        elif target.than:
            other = statistics.median(map(target.than, ours))
        yield Verdict(target, statistics.median(map(target.figure, ours)), other)


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield "| target | compared with | ours | ratio | at most | |"
    yield "|---|---|---|---|---|---|"
    for verdict in verdicts:
        target = verdict.target
        other = "" if verdict.other is None else f"{verdict.other:.{target.digits}f} ({target.other or 'alone'})"
        ratio = "" if verdict.other is None else f"{verdict.value:.2f}"
        beyond = 100 * (verdict.value / target.most - 1)
        told = "met" if verdict.met else f"**missed by {beyond:.{1 if beyond < 10 else 0}f} %**"
        yield f"| {target.title} | {other} | {verdict.ours:.{target.digits}f} | {ratio} | {target.most:.3g} | {told} |"
