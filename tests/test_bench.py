"""The evaluation of benchmark results (`e2e/bench`): targets, disturbed runs, the report and its charts."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import pytest

from e2e.bench import runs
from e2e.bench.__main__ import plans
from e2e.bench.cluster import NAMESPACE
from e2e.bench.floor import FLOORS, median_job
from e2e.bench.node import SimulatedPod
from e2e.bench.operators import HERE, OPERATORS
from e2e.bench.programs import PROGRAMS
from e2e.bench.ratios import compare
from e2e.bench.report import COLUMNS, group, markdown, write
from e2e.bench.requests import count_requests
from e2e.bench.scale import exponent
from e2e.bench.scenarios import SCENARIOS
from e2e.bench.targets import (
    BASE,
    COUNT_PREFIX,
    DI_SERVER,
    FLOOR_OF,
    JOB,
    LEADER,
    OURS,
    STOCK,
    TARGETS,
    judge,
    over_floors,
)
from e2e.bench.why import measure
from e2e.cluster.daemons import wait_until
from tests.patience import PATIENCE


def run(
    operator: str, scenario: str = "s1", foreign: float = 0.0, jobs: int = 200, repetition: int = 0, **result: Any
) -> dict[str, Any]:
    return {
        "scenario": scenario,
        "operator": operator,
        "repetition": repetition,
        "sizes": {"jobs": jobs},
        "foreign": foreign,
        "result": result,
    }


def series(operator: str, scenario: str, figure: str, *values: float) -> list[dict[str, Any]]:
    return [
        {**run(operator, scenario, repetition=number), "result": {figure: value}} for number, value in enumerate(values)
    ]


def verdicts(*runs: dict[str, Any]) -> dict[tuple[str, str], tuple[float, bool]]:
    return {(each.target.title, each.operator): (round(each.value, 3), each.met) for each in judge(group(runs))}


COUNTED = "S2: until all workers of one job are counted, s"


@pytest.mark.parametrize(("ours", "value", "met"), [((6.0, 4.0, 18.0), 0.6, True), ((5.0, 7.0, 27.0), 0.7, False)])
def test_a_ratio_is_the_median_of_those_of_runs_that_took_turns(ours: tuple[float, ...], value: float, met: bool):
    peers = series(BASE, "s2", "all_counted", 10.0, 10.0, 30.0)
    assert verdicts(*series(OURS, "s2", "all_counted", *ours), *peers) == {(COUNTED, OURS): (value, met)}


def test_each_mode_has_its_own_limit():
    modes = [run(each, "s2", all_counted=5.0) for each in (OURS, JOB)]
    assert verdicts(*modes, run(BASE, "s2", all_counted=10.0)) == {
        (COUNTED, OURS): (0.5, True),
        (COUNTED, JOB): (0.5, False),
    }


def test_each_mode_is_compared_with_its_own_floor():
    """A mode that needs fewer objects has a lower bound of its own."""
    floors = [run(FLOOR_OF[each], all_running=10.0, running_p50=5.0) for each in (OURS, LEADER, JOB)]
    modes = [run(each, all_running=13.0, running_p50=6.0) for each in (OURS, LEADER, JOB)]
    found = [*judge(group([*modes, *floors]), tuple(over_floors()))]
    assert [(each.operator, each.value, each.met) for each in found if "until all jobs run" in each.target.title] == [
        (OURS, 1.3, False),
        (LEADER, 1.3, True),
        (JOB, 1.3, True),
    ]
    medians = [each for each in found if "median job" in each.target.title]
    assert [(each.operator, each.value, each.met) for each in medians] == [
        (each, 1.2, True) for each in (OURS, LEADER, JOB)
    ]


@pytest.mark.parametrize(
    ("floor", "created"),
    [
        ("floor", {"Pod": 8, "Service": 8}),
        ("floor-leader", {"Pod": 8, "Service": 1}),
        ("floor-job", {"Pod": 8, "Service": 1}),
        ("floor-ssh", {"Pod": 7, "Service": 1, "ConfigMap": 1, "Secret": 1, "Job": 1}),
    ],
)
def test_a_floor_creates_what_a_job_of_eight_pods_needs_and_no_more(floor: str, created: dict[str, int]):
    """Over ssh, kube-controller-manager creates the eighth pod from the Job."""
    made = list(FLOORS[floor].objects(2, 7))
    assert Counter(resource.kind for resource, _ in made) == {kind: 2 * count for kind, count in created.items()}
    assert len({(resource, body["metadata"]["name"]) for resource, body in made}) == len(made)
    assert {body["metadata"]["namespace"] for _, body in made} == {NAMESPACE}


def test_every_floor_is_that_of_an_operator():
    assert set(FLOOR_OF.values()) == set(FLOORS)
    assert set(FLOOR_OF) <= set(OPERATORS)


def test_the_median_job_of_a_floor_runs_when_its_last_pod_does():
    ends = [1.0, 2.0, 9.0, 3.0, 4.0, 5.0]
    pods = [SimulatedPod("p", "", f"job-{index // 2}", "", 0.0, "Running", ran) for index, ran in enumerate(ends)]
    assert median_job(pods, 0.5) == 4.5


def test_a_target_without_a_measurement_has_no_verdict():
    assert verdicts(run(OURS, "s2", all_counted=1.0), run(BASE, "s3", rss=1.0)) == {}


def test_requests_are_those_of_all_phases():
    requests = [{"per_job": 18.0, "requests": {}, "refused": {}}, {"per_job": 2.5, "requests": {}, "refused": {}}]
    found = verdicts(run(OURS, "count-s1", requests=requests))
    assert found == {("S1: API requests per job, creation to Succeeded", OURS): (20.5, False)}


def test_a_figure_may_be_compared_with_another_of_the_same_run():
    probes = [
        run(OURS, "s6", repetition=n, alone_p50=0.01, alone_p95=0.01, beside_p50=0.04, beside_p95=0.01 * n)
        for n in (1, 2, 3)
    ]
    assert list(verdicts(*probes).values()) == [(4.0, False), (2.0, True)]


@pytest.mark.parametrize(
    ("ratios", "text"),
    [
        ((0.5,), "0.50"),
        ((0.9, 1.1), "no difference (0.90 to 1.10)"),
        ((0.5, 0.6, 0.7, 0.8, 0.9), "0.70 (0.50 to 0.90)"),
        ((*(0.5 + 0.01 * n for n in range(10)), 5.0), "0.55 (0.52 to 0.58)"),
    ],
)
def test_an_interval_encloses_the_median_ratio(ratios: tuple[float, ...], text: str):
    ours = dict(enumerate(ratios))
    assert str(compare(ours, dict.fromkeys(ours, 1.0))) == text


def test_only_runs_of_the_same_repetition_are_paired():
    assert str(compare({0: 1.0, 1: 50.0, 2: 9.0}, {0: 2.0, 2: 18.0, 3: 1.0})) == "0.50 (0.50 to 0.50)"
    assert str(compare({0: 1.0, 1: 2.0}, {2: 4.0, 3: 6.0})) == "0.30 (0.17 to 0.50)"
    assert compare({}, {0: 1.0}) is None
    assert compare({0: 1.0}, {0: 0.0}) is None


def test_disturbed_runs_count_only_where_there_are_no_others():
    calm, disturbed = run(OURS, "s4", p95=1.0), run(OURS, "s4", 0.5, p95=9.0)
    assert group([disturbed, calm]) == {("s4", OURS): [calm]}
    assert group([disturbed]) == {("s4", OURS): [disturbed]}


def test_the_share_of_other_processes_is_that_of_the_worst_phase(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    phases = {"cpu": {"other": 1.0, "t": 10.0}, "cpu_end": {"other": 2.0, "t": 10.0}}
    assert runs.foreign_share({**phases, "cpu_ms_per_pod": 99.0}) == 0.1
    assert runs.foreign_share({}) == 0.0


def test_the_report_names_each_missed_target_and_by_how_much():
    text = markdown([*series(OURS, "s2", "all_counted", 9.0, 9.0), *series(BASE, "s2", "all_counted", 8.0, 10.0)])
    row = "| 9.00 (training-operator-tuned) | 9.00 | no difference (0.90 to 1.12) | 0.65 | **missed by 56 %** |"
    assert row in text
    assert "0 of 1 targets are met." in text


async def test_a_failed_run_is_reported_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    outcomes: list[Any] = [ExceptionGroup("two posts", [ConnectionResetError("gone")]), run(OURS, "s4", p95=1.0)]

    async def play(plan: runs.Plan, name: str, repetition: int) -> dict[str, Any]:
        outcome = outcomes.pop(0)
        if isinstance(outcome, ExceptionGroup):
            raise outcome
        return dict(outcome)

    monkeypatch.setattr(runs, "run_one", play)
    await runs.run([runs.Plan((OURS,), "s4", repetitions=2)], tmp_path / "session.jsonl")
    kept = [record for record in runs.read_records(tmp_path / "session.jsonl") if "scenario" in record]
    assert [record["result"] for record in kept] == [{"p95": 1.0}]
    assert "s4 trainop #0 failed" in capsys.readouterr().out


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """Replaces all runs; records scenario, operator and repetition."""
    order = []

    async def play(plan: runs.Plan, name: str, repetition: int) -> dict[str, Any]:
        order.append((plan.scenario, name, repetition))
        return run(name, plan.scenario, repetition=repetition)

    monkeypatch.setattr(runs, "run_one", play)
    return order


async def test_operators_take_turns_and_every_scenario_comes_before_a_repetition(
    tmp_path: Path, played: list[tuple[str, str, int]]
):
    turns = [runs.Plan((OURS, BASE), "s1", 2, once=(STOCK,)), runs.Plan((OURS,), "s4")]
    await runs.run(turns, tmp_path / "session.jsonl")
    assert played == [
        ("s1", OURS, 0),
        ("s1", BASE, 0),
        ("s1", STOCK, 0),
        ("s4", OURS, 0),
        ("s1", OURS, 1),
        ("s1", BASE, 1),
    ]


async def test_a_session_can_be_continued(tmp_path: Path, played: list[tuple[str, str, int]]):
    for _ in range(2):
        await runs.run([runs.Plan((OURS,), "s4", 2)], tmp_path / "session.jsonl")
    assert [repetition for _, _, repetition in played] == [0, 1, 2, 3]


async def test_no_repetition_begins_after_the_time_is_over(
    tmp_path: Path, played: list[tuple[str, str, int]], capsys: pytest.CaptureFixture[str]
):
    await runs.run([runs.Plan((OURS,), "s4")], tmp_path / "session.jsonl", minutes=-1)
    assert played == []
    assert "s4 #0 is left out" in capsys.readouterr().out


def test_requests_of_the_cluster_are_counted_apart(tmp_path: Path):
    log, lines = tmp_path / "audit.log", []
    for user, verb, resource, code in (
        ("operator", "create", "pods", 201),
        ("operator", "create", "pods", 409),
        ("operator", "watch", "pods", 200),
        ("kcm", "create", "endpointslices", 201),
        ("kcm", "update", "endpointslices", 409),
    ):
        entry = {"verb": verb, "stage": "ResponseComplete", "user": {"username": user}}
        lines.append({**entry, "objectRef": {"resource": resource}, "responseStatus": {"code": code}})
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert count_requests(log, [0, log.stat().st_size], 2, "operator") == [
        {
            "per_job": 1.0,
            "requests": {"create pods": 1.0},
            "refused": {"409 create pods": 1},
            "cluster": {"create endpointslices": 0.5, "update endpointslices": 0.5},
        }
    ]


def test_a_session_becomes_a_report_with_a_chart_for_each_scenario(tmp_path: Path):
    waits = [
        run(operator, "s6", alone_p50=0.01, alone_p95=0.02, beside_p50=0.01, beside_p95=p95)
        for operator, p95 in ((OURS, 0.03), (BASE, 0.06))
    ]
    text = write(waits, tmp_path)
    assert "| **30.0**; 0.50 |" in text
    assert "| 20.0 (alone) | 30.0 | 1.50 | 4 | met |" in text
    assert "Not all was played at the sizes" in text
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "s6.svg"}


def test_every_scenario_and_program_is_part_of_a_session_and_has_columns():
    session = plans(Namespace(command="run", scenario="", only="", sizes="", repetitions=0))
    uncounted = [each for each in session if not each.scenario.startswith(COUNT_PREFIX)]
    assert {each.scenario for each in uncounted} == {*SCENARIOS, *PROGRAMS} == set(COLUMNS)
    for plan in uncounted:
        assert {*plan.operators, *plan.once} <= {*OPERATORS, *FLOORS, DI_SERVER}
    assert {target.scenario for target in TARGETS} <= {plan.scenario for plan in session}
    assert {(each.scenario, name) for each in TARGETS for name in each.limits} <= {
        (plan.scenario, name) for plan in session for name in plan.operators
    }


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_growth_is_reported_as_an_exponent(power: float):
    sizes = [1000.0, 5000.0, 50000.0]
    assert exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


def test_memory_of_a_command_is_its_own_and_not_that_of_the_benchmark():
    cost, output = measure([sys.executable, "-S", "-E", "-c", "print('done')"])
    assert output == "done\n"
    assert 0 < cost.memory < 25 < getrusage(RUSAGE_SELF).ru_maxrss / 1024
    assert cost.cpu > 0
    assert cost.seconds > 0


# The end --------------------------------------------------------------------------------------------------------------

STARTS = """
import sys, time
from pathlib import Path
from e2e.bench.processes import Program
operator = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
log = Path(sys.argv[1])
program = Program([sys.executable, "-c", operator], log, {})
while "ready" not in log.read_text():
    time.sleep(0.01)
print(program.pid, flush=True)
time.sleep(600)
"""
"""A benchmark that does not stop its operator, which ignores SIGTERM."""


@pytest.mark.skipif(sys.platform != "linux", reason="only the kernel of Linux ends a process with its parent")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_an_operator_ends_with_its_benchmark(tmp_path: Path, number: signal.Signals):
    command = [sys.executable, "-c", STARTS, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as benchmark:
        assert benchmark.stdout is not None
        pid = int(benchmark.stdout.readline())
        assert runs_now(pid)
        benchmark.send_signal(number)
        assert benchmark.wait(PATIENCE) != 0
    assert wait_until(lambda: not runs_now(pid), PATIENCE)


def runs_now(pid: int) -> bool:
    """Whether the process exists and is no zombie, which nobody might collect."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


UNWINDS = """
import asyncio
from e2e.bench.processes import exit_on_sigterm
async def main():
    try:
        print("works", flush=True)
        await asyncio.sleep(600)
    finally:
        print("stops its programs", flush=True)
exit_on_sigterm()
asyncio.run(main())
"""


def test_a_benchmark_that_is_terminated_stops_its_programs():
    with subprocess.Popen([sys.executable, "-c", UNWINDS], stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        assert benchmark.stdout.readline() == "works\n"
        benchmark.terminate()
        assert (benchmark.stdout.read(), benchmark.wait(PATIENCE)) == ("stops its programs\n", 128 + signal.SIGTERM)


def test_every_process_of_the_benchmark_ends_with_it():
    starts = {"Popen", "create_subprocess_exec"}
    calls = [
        (path.name, node)
        for path in HERE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in starts
    ]
    assert len(calls) >= 6
    assert [name for name, call in calls if "preexec_fn" not in {each.arg for each in call.keywords}] == []
