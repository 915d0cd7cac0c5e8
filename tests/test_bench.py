"""The evaluation of benchmark results (`e2e/bench`): targets, disturbed runs, the report and its charts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.bench import runs
from e2e.bench.report import group, markdown, write
from e2e.bench.scale import exponent
from e2e.bench.targets import BASE, OURS, STOCK, judge


def run(operator: str, scenario: str = "s1", foreign: float = 0.0, jobs: int = 200, **result: Any) -> dict[str, Any]:
    return {"scenario": scenario, "operator": operator, "sizes": {"jobs": jobs}, "foreign": foreign, "result": result}


def verdicts(*runs: dict[str, Any]) -> dict[str, tuple[float, bool]]:
    return {each.target.title: (round(each.value, 3), each.met) for each in judge(group(runs))}


@pytest.mark.parametrize(("ours", "met"), [((1.0, 2.0, 9.0), True), ((4.0, 6.0, 6.1), False)])
def test_a_target_is_a_ratio_of_medians(ours: tuple[float, ...], met: bool):
    peers = [run(BASE, "s2", all_counted=value) for value in (9.0, 10.0, 30.0)]
    found = verdicts(*(run(OURS, "s2", all_counted=value) for value in ours), *peers)
    assert found == {"S2: until all workers of one job are counted running, s": (ours[1] / 10, met)}


def test_a_target_without_a_measurement_has_no_verdict():
    assert verdicts(run(OURS, "s4", p95=1.0), run(BASE, "s3", rss=1.0)) == {}


def test_limited_resources_are_compared_per_job():
    found = verdicts(run(OURS, all_running=6.0), run(STOCK, jobs=20, all_running=30.0))
    assert found == {"S1: ms per job until all run, over the stock flags'": (0.02, True)}


def test_requests_are_those_of_all_phases():
    requests = [{"per_job": 18.0, "requests": {}, "refused": {}}, {"per_job": 2.5, "requests": {}, "refused": {}}]
    found = verdicts(run(OURS, "count-s1", requests=requests))
    assert found == {"S1: API requests per job, creation to Succeeded": (20.5, False)}


def test_disturbed_runs_count_only_where_there_are_no_others():
    calm, disturbed = run(OURS, "s4", p95=1.0), run(OURS, "s4", 0.5, p95=9.0)
    assert group([disturbed, calm]) == {("s4", OURS): [calm]}
    assert group([disturbed]) == {("s4", OURS): [disturbed]}


def test_the_report_names_each_missed_target_and_by_how_much():
    text = markdown([run(OURS, "s4", p50=0.01, p95=0.03), run(BASE, "s4", p50=0.01, p95=0.02)])
    assert "| 20.0 (training-operator-tuned) | 30.0 | 1.50 | 1 | **missed by 50 %** |" in text


async def test_a_failed_run_is_reported_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    outcomes: list[Any] = [ExceptionGroup("two posts", [ConnectionResetError("gone")]), run(OURS, "s4", p95=1.0)]

    async def play(plan: runs.Plan, name: str) -> dict[str, Any]:
        outcome = outcomes.pop(0)
        if isinstance(outcome, ExceptionGroup):
            raise outcome
        return dict(outcome)

    monkeypatch.setattr(runs, "run_one", play)
    await runs.run(runs.Plan((OURS,), "s4", repetitions=2), tmp_path / "session.jsonl")
    kept = [record for record in runs.read_records(tmp_path / "session.jsonl") if "scenario" in record]
    assert [record["result"] for record in kept] == [{"p95": 1.0}]
    assert "s4 trainop #0 failed" in capsys.readouterr().out


def test_a_session_becomes_a_report_with_a_chart_for_each_scenario(tmp_path: Path):
    waits = {operator: run(operator, "s6") for operator in (OURS, BASE)}
    for operator, p99 in ((OURS, 0.03), (BASE, 0.06)):
        waits[operator]["result"] = {"alone_p50": 0.01, "alone_p99": 0.02, "beside_p50": 0.01, "beside_p99": p99}
    text = write(list(waits.values()), tmp_path)
    assert "| 30.0 / **30.0** / 30.0 (0.50) |" in text
    assert "| 20.0 (alone) | 30.0 | 1.50 | 2 | met |" in text
    assert "Not all was played at the sizes" in text
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "s6.svg"}


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_growth_is_reported_as_an_exponent(power: float):
    sizes = [1000.0, 5000.0, 50000.0]
    assert exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)
