"""Queries of the dashboard under Prometheus' own tools, on series whose result is known."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.needs import need_monitoring
from trainop.manifests.dashboard import dashboard


def query_of(title: str) -> str:
    (panel,) = [each for each in dashboard()["panels"] if each["title"] == title]
    (target,) = panel["targets"]
    return str(target["expr"]).replace("$job", "training-operator").replace("$__rate_interval", "10m")


def bucket(phase: str, bound: str, per_minute: int) -> Any:
    labels = f'job="training-operator", phase="{phase}", kind="PyTorchJob", le="{bound}"'
    return {"series": f"trainop_job_phase_seconds_bucket{{{labels}}}", "values": f"0+{per_minute}x20"}


def test_the_median_of_each_phase_is_shown(tmp_path: Path):
    """Of ten jobs a minute, half start within 5 s and all within 15 s; all run for 60 to 180 s."""
    series = [
        *(bucket("starting", bound, count) for bound, count in (("1", 0), ("5", 5), ("15", 10), ("+Inf", 10))),
        *(bucket("running", bound, count) for bound, count in (("60", 0), ("180", 10), ("+Inf", 10))),
    ]
    expected = [
        {"labels": f'{{phase="{phase}", kind="PyTorchJob"}}', "value": value}
        for phase, value in (("starting", 5), ("running", 120))
    ]
    check = {"expr": query_of("Phases of jobs: median"), "eval_time": "20m", "exp_samples": expected}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [check]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": []}), encoding="utf-8")
    cases = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases), encoding="utf-8")
    command = [need_monitoring("promtool"), "test", "rules", str(tmp_path / "cases.yaml")]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
