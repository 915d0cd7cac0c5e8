"""Reports of progress to the operator of `trainop run`: they arrive from pods of either network, and are shown."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.needs import lack
from tests.patience import PATIENCE
from tests.run.test_run import job, write
from tests.run.test_screen import shown
from trainop.explain.why.reported import Reported, describe_reported, read_reported
from trainop.local.cluster import ClusterOptions
from trainop.local.node.registration import container_environment
from trainop.run.documents import read
from trainop.run.pace import LINE_INTERVAL, Pace
from trainop.run.screen import JobView
from trainop.run.session import run_documents

PROGRESS = "trainop.kubeflow.org/progress"
REPORT = "import trainop.progress as p; print(p.report(3, 10, loss=0.25), flush=True); p._reporter().flush()"


def reporting(name: str, annotation: str | None, until: Path) -> dict[str, Any]:
    """A job that reports once, and ends when a file is there."""
    wait = f"while ! test -e {until}; do sleep 0.05; done"
    made = job(name, f'{sys.executable} -c "{REPORT}"; {wait}')
    if annotation is not None:
        made["metadata"]["annotations"] = {PROGRESS: annotation}
    return made


async def run(folder: Path, network: Any, jobs: list[dict[str, Any]], wanted: tuple[str, ...], **options: Any) -> str:
    """Runs jobs until the output has what is wanted, then to their end; the output."""
    out = io.StringIO()
    console = Console(file=out, width=200, highlight=False)
    documents = read([write(folder, *jobs)])
    running = asyncio.create_task(
        run_documents(documents, ClusterOptions(network=network), console, start_timeout=0, **options)
    )
    async with asyncio.timeout(PATIENCE):
        while not running.done() and not all(each in out.getvalue() for each in wanted):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.05)
        (folder / "end").touch()
        assert await running == 0, out.getvalue()
    return out.getvalue()


@pytest.mark.parametrize("network", ["addresses", "namespaces"])
async def test_pods_report_and_their_progress_is_shown(
    tmp_path: Path, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY"):  # nothing may be sent there
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    end = tmp_path / "end"
    jobs = [reporting(name, value, end) for name, value in (("asks", "true"), ("plain", None))]
    try:
        shown = await run(tmp_path, network, jobs, ("asks 30 %, step 3 of 10, loss 0.25\n", "plain/master-0 False"))
    except OSError as error:
        lack(f"network mode {network} ({error})")
    assert "asks 30 %, step 3 of 10, loss 0.25\n" in shown
    assert "plain 30 %" not in shown


async def test_with_the_flag_all_jobs_report_but_those_that_refuse(tmp_path: Path) -> None:
    jobs = [reporting(name, value, tmp_path / "end") for name, value in (("plain", None), ("off", "false"))]
    shown = await run(tmp_path, "addresses", jobs, ("plain 30 %", "off/master-0 False"), progress=True)
    assert "plain 30 %" in shown
    assert "off 30 %" not in shown


# The pace -------------------------------------------------------------------------------------------------------------


def at(step: int, total: int = 1000, **more: Any) -> Reported:
    metrics = {"current_step": str(step), "total_steps": str(total), **more}
    return Reported(percent=100 * step // total, metrics=metrics)


def rate(pace: Pace) -> float | None:
    """Read anew each time."""
    return pace.rate


def test_the_rate_is_that_of_the_last_reports():
    pace = Pace()
    assert rate(pace) is None
    for number in range(40):
        assert pace.take(at(number * 10), 100.0 + number * 5)
    assert rate(pace) == 2.0
    assert not pace.take(at(390), 1000.0), "the same report again says nothing"
    assert not pace.take(None, 1000.0)
    assert rate(pace) == 2.0
    pace.take(at(100), 1000.0)
    assert rate(pace) is None, "after a restart the steps begin again"
    pace.take(at(120), 1001.0)
    assert rate(pace) == 20.0


@pytest.mark.parametrize("step", ["nan", "inf", "-5", "x", "", "9" * 64])
def test_steps_that_are_no_numbers_have_no_rate(step: str):
    pace = Pace()
    for number in range(3):
        pace.take(Reported(percent=number, metrics={"current_step": step, "total_steps": step}), float(number))
    assert pace.rate is None
    assert "step" not in pace.text


def test_lines_are_rare():
    pace, due = Pace(), []
    for second in range(1000):
        pace.take(at(second), float(second))
        if pace.is_line_due(float(second)):
            due.append(second)
    assert due[:6] == [0, 30, 60, 90, 100, 130]
    assert len(due) <= 10 + 1000 / LINE_INTERVAL
    quick, count = Pace(), 0
    for step in range(1001):
        quick.take(at(step), step / 1000)
        count += quick.is_line_due(step / 1000)
    assert count == 11
    assert not Pace().is_line_due(0.0)


async def test_the_table_has_a_bar():
    view = JobView("train", "PyTorchJob", ["Running"])
    assert len(await shown(view)) == 2
    view.pace.take(at(370, loss="0.3125"), 0.0)
    bar = (await shown(view))[1]
    assert bar == "█" * 8 + "░" * 16 + " 37 %, step 370 of 1,000, loss 0.3125"
    view.pace.take(Reported(metrics={"loss": "x" * 64, "current_step": "7"}), 1.0)
    assert (await shown(view))[1] == "step 7, loss xxxxxxxxxxxx"
    view.pace.take(Reported(percent=1, left=10**9, metrics={"current_step": "123456789", "loss": "1" * 64}), 2.0)
    assert len(await shown(view)) == 3, "it is cut, and never takes two lines"


# Words ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, None),
        ({"trainerStatus": None}, None),
        ({"trainerStatus": []}, None),
        ({"trainerStatus": {}}, ""),
        ({"trainerStatus": {"progressPercentage": True, "metrics": [1, {"name": 1}], "lastUpdatedTime": 5}}, ""),
        ({"trainerStatus": {"progressPercentage": 500, "estimatedRemainingSeconds": -3}}, "100 %"),
        ({"trainerStatus": {"progressPercentage": 37, "estimatedRemainingSeconds": 1260}}, "37 %, 21 min left"),
        ({"trainerStatus": {"metrics": [{"name": "loss", "value": "nan"}]}}, "loss nan"),
        ({"trainerStatus": {"metrics": [{"name": "loss", "value": "\x1b[2J\n9"}]}}, "loss 9"),
        ({"trainerStatus": {"metrics": [{"name": "train_loss", "value": "-0.000096194"}]}}, "loss -9.619e-05"),
        ({"trainerStatus": {"metrics": [{"name": "current_step", "value": "1500.5"}]}}, "step 1,500"),
    ],
)
def test_a_status_of_any_form_is_put_into_words(status: dict[str, Any], said: str | None):
    found = read_reported(status)
    assert (found and describe_reported(found)) == (said if found else None)
    assert (found is None) == (said is None)


@pytest.mark.parametrize(
    ("rate", "said"),
    [(4.2, "4.2 steps/s"), (1234.5, "1,234 steps/s"), (0.25, "4 s/step"), (1e-9, "1,000,000,000 s/step")],
)
def test_slow_trainings_count_seconds_per_step(rate: float, said: str):
    assert describe_reported(Reported(), rate) == said


# Proxies --------------------------------------------------------------------------------------------------------------


def test_proxies_of_the_caller_are_not_used_for_the_cluster(tmp_path: Path):
    def made(mode: Any, **caller: str) -> dict[str, str]:
        found = container_environment({"PATH": "/bin", **caller}, tmp_path, mode, tmp_path)
        return {name: value for name, value in found.items() if name.lower() == "no_proxy"}

    assert made("addresses") == {}
    assert made("namespaces", NO_PROXY="x") == {"NO_PROXY": "x"}
    assert made("addresses", http_proxy="") == {}
    assert made("addresses", http_proxy="p") == {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    both = "corp,10.96.0.1,10.96.0.2"
    assert made("namespaces", HTTPS_PROXY="p", NO_PROXY="corp") == {"no_proxy": both, "NO_PROXY": both}
