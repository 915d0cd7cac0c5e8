"""The performance targets of our operator, as ratios to another operator or absolute figures."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from e2e.bench.ratios import Ratio, compare, median_of
from trainop.runtime.objects.metadata import Json

OURS, JOB, LEADER = "trainop", "trainop-job", "trainop-leader"
"""Our operator with a Service for each replica, with one for each job, and with one for each leader."""
BASE, STOCK, FLOOR = "training-operator-tuned", "training-operator-default", "floor"
FLOOR_OF = {OURS: FLOOR, LEADER: "floor-leader", JOB: "floor-job", "trainop-ssh": "floor-ssh"}
"""The floor of each of our operators (`floor.py`): that of a mode with fewer objects is lower."""
ALONE = "alone"
"""The base of a figure that is compared with another one of the same run."""
DI_SERVER, SCALE = "di-server", "scale"
"""Scenarios of our programs alone."""
MPI_RIVALS = {
    "ssh": ("trainop-ssh", "mpi-operator-tuned"),
    "exec": ("trainop-exec", "training-operator-exec"),
}
"""Transport of MPIJob, which is the prefix of its scenarios -> our operator and the one that it is compared with."""
RIVALS = {
    **MPI_RIVALS,
    "gang": ("trainop-gang", "training-operator-gang"),
    "webhook": ("trainop-webhook", "training-operator-webhook"),
}
"""The same of all prefixes."""


def rivals(scenario: str) -> tuple[str, str]:
    """Our operator and the one that it is compared with."""
    return RIVALS.get(scenario.removeprefix(COUNT_PREFIX).partition("-")[0], (OURS, BASE))


COUNT_PREFIX = "count-"
"""Prefix of a scenario's name: requests are counted with the audit log, which slows down the API server."""

Runs = Mapping[tuple[str, str], Sequence[Json]]
"""(scenario, operator) -> runs; runs that counted requests have the scenario `count-SCENARIO`."""
Figure = Callable[[Json], float]


class Target(NamedTuple):
    """The figure of each operator in `limits` must be at most its limit.

    With `base`, it is divided by the figure of that operator; with `own_base`, by another figure of the same run.
    """

    title: str
    scenario: str
    figure: Figure
    limits: Mapping[str, float]
    base: str = ""
    digits: int = 2
    own_base: Figure | None = None


class Verdict(NamedTuple):
    target: Target
    operator: str
    figure: float
    base: float | None
    """The figure that it is divided by."""
    ratio: Ratio | None

    @property
    def limit(self) -> float:
        return self.target.limits[self.operator]

    @property
    def value(self) -> float:
        return self.ratio.value if self.ratio else self.figure

    @property
    def met(self) -> bool:
        return self.value <= self.limit


def _result(name: str, factor: float = 1.0) -> Figure:
    return lambda record: float(record["result"][name]) * factor


def _requests(record: Json) -> float:
    return float(sum(phase["per_job"] for phase in record["result"]["requests"]))


def _per_unit(name: str, size: str) -> Figure:
    """Milliseconds per job or pod, because rate-limited operators are measured at a smaller size."""
    return lambda record: 1000 * float(record["result"][name]) / record["sizes"][size]


def _mpi_targets(transport: str, *, requests: int | None = None) -> Iterator[Target]:
    ours, base = MPI_RIVALS[transport]
    s1, s2, s3 = (f"{transport}-{name}" for name in ("s1", "s2", "s3"))
    if requests:
        title = f"MPIJob, {transport}, S1: API requests per job, creation to Succeeded"
        yield Target(title, f"{COUNT_PREFIX}{s1}", _requests, {ours: requests}, digits=1)
    about = f"MPIJob, {transport}"
    yield Target(f"{about}, S1: until all jobs run, s", s1, _result("all_running"), {ours: 0.9}, base)
    cpu = _result("operator_ms_per_job")
    yield Target(f"{about}, S1: operator CPU per job, ms", s1, cpu, {ours: 0.6}, base, digits=1)
    yield Target(f"{about}, S2: until all workers are counted, s", s2, _result("all_counted"), {ours: 0.9}, base)
    yield Target(f"{about}, S3: RSS with 10,000 pods, MiB", s3, _result("rss"), {ours: 0.3}, base, digits=0)


def _both(replica: float, job: float) -> Mapping[str, float]:
    """The limits with a Service for each replica, and with one for each job."""
    return {OURS: replica, JOB: job}


def over_floors() -> Iterator[Target]:
    """Each mode over its own floor, which no operator can be below."""
    modes = {OURS: ("replica", 1.2), LEADER: ("leader", 1.4), JOB: ("job", 1.4)}
    figures = {"until all jobs run": "all_running", "creation to Running, median job": "running_p50"}
    for title, name in figures.items():
        for operator, (mode, limit) in modes.items():
            about = f"S1, mode {mode}: {title}, over the bare client's, s"
            yield Target(about, "s1", _result(name), {operator: limit}, FLOOR_OF[operator])
    ours = MPI_RIVALS["ssh"][0]
    about = "MPIJob, ssh, S1: until all jobs run, over the bare client's, s"
    yield Target(about, "ssh-s1", _result("all_running"), {ours: 1.4}, FLOOR_OF[ours])


TARGETS = (
    Target("S1: API requests per job, creation to Succeeded", "count-s1", _requests, _both(19, 12), digits=1),
    Target("S2: API requests of a job of 1,000 workers until it runs", "count-s2", _requests, {JOB: 1004}, digits=0),
    Target("S1: until all jobs run, s", "s1", _result("all_running"), _both(0.85, 0.85), BASE),
    *over_floors(),
    Target("S1: creation to Running, median job, s", "s1", _result("running_p50"), _both(0.5, 0.3), BASE),
    Target("S1: operator CPU per job, ms", "s1", _result("operator_ms_per_job"), _both(0.5, 0.35), BASE, digits=1),
    Target("S2: until all workers of one job are counted, s", "s2", _result("all_counted"), _both(0.65, 0.4), BASE),
    Target("S3: RSS with 10,000 pods, MiB", "s3", _result("rss"), _both(0.18, 0.18), BASE, digits=0),
    Target("S3: the same, without a base", "s3", _result("rss"), _both(80, 72), digits=0),
    Target("S3: restart until a new job's first pod, s", "s3", _result("restart_first_pod"), _both(0.28, 0.2), BASE),
    Target("S3: the restart, without a base", "s3", _result("restart_first_pod"), _both(1.8, 1.2)),
    Target("S4: failed pod to replacement, p50, ms", "s4", _result("p50", 1000), _both(1, 1), BASE, digits=1),
    Target("S4: failed pod to replacement, p95, ms", "s4", _result("p95", 1000), _both(1, 1), BASE, digits=1),
    *(
        Target(
            f"S6: first pod of a small job beside one of 5,000 pods over alone, {share}, ms",
            "s6",
            _result(f"beside_{share}", 1000),
            _both(limit, limit),
            ALONE,
            digits=1,
            own_base=_result(f"alone_{share}", 1000),
        )
        for share, limit in (("p50", 3), ("p95", 4))
    ),
    Target(
        "100,000 pods: ms of CPU per pod over that with a tenth of the pods",
        SCALE,
        _result("cpu_ms_per_pod"),
        {OURS: 1.15},
        "10,000 pods",
        own_base=_result("tenth_cpu_ms_per_pod"),
    ),
    Target("100,000 pods: KiB per pod beyond the idle process", SCALE, _result("kib_per_pod"), {OURS: 3.5}, digits=1),
    Target("100,000 pods: RSS, MiB", SCALE, _result("rss"), {OURS: 330}, digits=0),
    Target("100,000 pods: restart until a new job's first pod, s", SCALE, _result("restart_first_pod"), {OURS: 12}),
    Target("100,000 pods: longest stall of the event loop, ms", SCALE, _result("stall_ms"), {OURS: 100}, digits=0),
    *_mpi_targets("ssh", requests=16),
    *_mpi_targets("exec"),
    Target(
        "di-server: POST of 1,000 replicas over the bare client's, s",
        DI_SERVER,
        _result("post"),
        {DI_SERVER: 1.3},
        FLOOR,
        own_base=_result("raw"),
    ),
    Target("di-server: GET among 10,000 pods, ms", DI_SERVER, _result("get"), {DI_SERVER: 20}, digits=1),
    Target("di-server: GET beside 100 clients, p99, ms", DI_SERVER, _result("get_p99"), {DI_SERVER: 50}, digits=1),
    Target("di-server: RSS with 10,000 pods, MiB", DI_SERVER, _result("rss"), {DI_SERVER: 70}, digits=0),
)
"""Limits without a base are absolute, others are ratios."""


def by_repetition(runs: Sequence[Json], figure: Figure) -> dict[int, float]:
    """The figure of each run by its repetition."""
    return {run["repetition"]: figure(run) for run in runs}


def judge(runs: Runs, targets: Sequence[Target] = TARGETS) -> Iterator[Verdict]:
    """Verdicts on all targets for which the necessary runs exist."""
    for target, operator in ((each, operator) for each in targets for operator in each.limits):
        ours = by_repetition(runs.get((target.scenario, operator), ()), target.figure)
        if not ours:
            continue
        figure = statistics.median(ours.values())
        if not target.base:
            yield Verdict(target, operator, figure, None, None)
        elif base := _base(runs, target, operator):
            ratio = median_of([ours[n] / base[n] for n in ours]) if target.own_base else compare(ours, base)
            yield Verdict(target, operator, figure, statistics.median(base.values()), ratio)


def _base(runs: Runs, target: Target, operator: str) -> dict[int, float]:
    if target.own_base:
        return by_repetition(runs.get((target.scenario, operator), ()), target.own_base)
    return by_repetition(runs.get((target.scenario, target.base), ()), target.figure)


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """One row for each target, with the mode of one Service for each job in its own columns."""
    yield "| target | compared with | ours | ratio | at most | | ours, one Service per job | ratio | at most | |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for target, each in itertools.groupby(verdicts, lambda verdict: verdict.target):
        found = {verdict.operator == JOB: verdict for verdict in each}
        row = [target.title, _compared_with(found), *_cells(found.get(False)), *_cells(found.get(True))]
        yield f"| {' | '.join(row)} |"


def _compared_with(verdicts: Mapping[bool, Verdict]) -> str:
    """The base of a target. Of one in the same run, each mode has its own, so that none is shown."""
    verdict = next(iter(verdicts.values()))
    target = verdict.target
    if verdict.base is None or (target.own_base and len(verdicts) > 1):
        return target.base
    return f"{verdict.base:.{target.digits}f} ({target.base})"


def _cells(verdict: Verdict | None) -> Iterator[str]:
    """Figure, ratio, limit and outcome; empty without a verdict."""
    if verdict is None:
        yield from ("", "", "", "")
        return
    beyond = 100 * (verdict.value / verdict.limit - 1)
    yield f"{verdict.figure:.{verdict.target.digits}f}"
    yield str(verdict.ratio) if verdict.ratio else ""
    yield f"{verdict.limit:,.4g}"
    yield "met" if verdict.met else f"**missed by {beyond:.{1 if beyond < 10 else 0}f} %**"
