"""The alert rules under Prometheus' own tools. `promtool test rules` calculates with them on series over hours."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.needs import need_monitoring
from trainop.manifests.alerts import ALERTS
from trainop.manifests.tree import files

CASES = Path(__file__).parent / "rules.yaml"


def write_rules(path: Path) -> Path:
    """Write the rules of the shipped PrometheusRule as a rule file."""
    rule = yaml.safe_load(files()["components/prometheus-rule/prometheus-rule.yaml"])
    path.write_text(yaml.safe_dump(rule["spec"]), encoding="utf-8")
    return path


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [need_monitoring("promtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, text=True)


def cases() -> Any:
    return yaml.safe_load(CASES.read_text(encoding="utf-8"))


def test_promtool_accepts_the_rules(tmp_path: Path):
    done = promtool("check", "rules", write_rules(tmp_path / "rules.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_every_alert_fires_and_does_not_fire(tmp_path: Path):
    write_rules(tmp_path / "rules.yaml")
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], **cases()}), encoding="utf-8")
    done = promtool("test", "rules", tmp_path / "cases.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", [alert.name for alert in ALERTS])
def test_there_is_a_case_of_each(alert: str):
    expected = {
        bool(check.get("exp_alerts"))
        for case in cases()["tests"]
        for check in case["alert_rule_test"]
        if check["alertname"] == alert
    }
    assert expected == {True, False}
