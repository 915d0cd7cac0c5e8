"""The alert rules under Prometheus' own tools. `promtool test rules` calculates with them on series over hours."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.needs import need_monitoring
from trainop.manifests.alerts import ALERTS, PROGRAMS
from trainop.manifests.names import NAME
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


def check_cases(folder: Path, found: Any) -> None:
    assert found
    write_rules(folder / "rules.yaml")
    text = yaml.safe_dump({"rule_files": ["rules.yaml"], **cases(), "tests": found})
    (folder / "cases.yaml").write_text(text, encoding="utf-8")
    done = promtool("test", "rules", folder / "cases.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_and_does_not_fire(tmp_path: Path):
    check_cases(tmp_path, cases()["tests"])


def of_other_programs(case: Any, program: str) -> Any:
    """The case as it is with another program."""
    text = yaml.safe_dump(case).replace("training-operator", program)
    return yaml.safe_load(text)


@pytest.mark.parametrize("program", [program for program in PROGRAMS if program != NAME])
def test_the_rules_are_for_every_program(program: str, tmp_path: Path):
    check_cases(tmp_path, [of_other_programs(case, program) for case in cases()["tests"]])


def beside_a_healthy_installation(case: Any) -> Any:
    """The case with the series of all cases in which its alert does not fire, as those of another installation."""
    alerts = {check["alertname"] for check in case["alert_rule_test"] if check.get("exp_alerts")}
    healthy = [
        each["input_series"]
        for each in cases()["tests"]
        if not any(check.get("exp_alerts") for check in each["alert_rule_test"])
        and alerts & {check["alertname"] for check in each["alert_rule_test"]}
    ]
    (alert,) = alerts
    series = HEALTHY.get(alert, healthy[0] if healthy else [])
    others = [{**each, "series": each["series"].replace('namespace="n"', 'namespace="second"')} for each in series]
    return {**case, "input_series": [*case["input_series"], *others]}


def _well(name: str, labels: str, values: str) -> list[dict[str, str]]:
    return [{"series": f'{name}{{job="training-operator", namespace="n", {labels}}}', "values": values}]


HEALTHY: dict[str, Any] = {
    "TrainingOperatorReconcileErrors": _well("controller_runtime_reconcile_total", 'controller="tfjob"', "0+6000x60"),
    "TrainingOperatorCertificateExpiring": _well(
        "trainop_certificate_expiry_timestamp_seconds", 'source="x"', "5184000x100"
    ),
}
"""Series of a second installation for alerts without a case of their own that never fires."""


def test_a_healthy_installation_hides_nothing_of_another(tmp_path: Path):
    """Each alert fires beside an installation of which all is well, with the same labels and values."""
    found = [case for case in cases()["tests"] if case["name"] != "nothing has ever been scraped"]
    firing = [case for case in found if any(check.get("exp_alerts") for check in case["alert_rule_test"])]
    check_cases(tmp_path, [beside_a_healthy_installation(case) for case in firing])


@pytest.mark.parametrize("alert", [alert.name for alert in ALERTS])
def test_there_is_a_case_of_each(alert: str):
    expected = {
        bool(check.get("exp_alerts"))
        for case in cases()["tests"]
        for check in case["alert_rule_test"]
        if check["alertname"] == alert
    }
    assert expected == {True, False}
