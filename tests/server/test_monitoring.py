"""A real Prometheus scrapes an operator that runs jobs on a real API server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from e2e.monitoring.prometheus import Prometheus
from tests.needs import need_monitoring
from tests.patience import PATIENCE
from tests.server.process import Operator, fetch
from tests.server.webhooks import Webhooks
from tests.server.world import World, replicas
from trainop.manifests.dashboard import dashboard
from trainop.manifests.tree import files

INTERVAL = "5m"
"""What Grafana might put for `$__rate_interval`."""


@pytest.fixture
def operator(
    alone: None, control_plane: ControlPlane, quiet_world: World, make_operator: Callable[..., Operator]
) -> Operator:
    """A leader that serves webhooks and has run a job with a disruption to its end."""
    need_monitoring("prometheus")
    world = quiet_world
    hooks = Webhooks(world)
    place = f"--leader-election-namespace={world.namespace}"
    only = f"--namespace={world.namespace}"  # the jobs of other tests are not to be counted
    operator = make_operator(control_plane.kubeconfig, "--leader-elect", place, only, environment=hooks.environment)
    operator.start()
    hooks.install(operator.webhook_port, "Fail")
    hooks.wait_injected()
    hooks.wait_called()
    hooks.remove()
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(1, "OnFailure")})
    pods = world.wait_pods("j-master-0", "j-worker-0")
    world.run_pod(*pods)
    world.wait_condition("Running")
    world.set_pod("j-worker-0", {"phase": "Failed", "reason": "Evicted"})
    world.wait_successor("j-worker-0", pods["j-worker-0"]["metadata"]["uid"])
    world.wait_condition("Running")
    world.end_pod("j-master-0")
    world.wait_condition("Succeeded")
    return operator


@contextmanager
def scraping(operator: Operator, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus with the shipped rules that scrapes the operator."""
    rules = folder / "rules.yaml"
    rule = yaml.safe_load(files()["components/prometheus-rule/prometheus-rule.yaml"])
    rules.write_text(yaml.safe_dump(rule["spec"]), encoding="utf-8")
    target = operator.metrics_url.removeprefix("http://").removesuffix("/metrics")
    running = Prometheus(folder, "training-operator", target, rules)
    running.start()
    try:
        yield running
    finally:
        running.end()


@pytest.fixture
def prometheus(operator: Operator, tmp_path: Path) -> Iterator[Prometheus]:
    with scraping(operator, tmp_path) as running:
        yield running


def queries() -> Iterator[tuple[str, str]]:
    """The title of each panel with its queries, with values for the variables."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$job", "training-operator").replace("$namespace", ".*")
            yield panel["title"], expression.replace("$__rate_interval", INTERVAL)


def test_promtool_accepts_the_metrics_and_prometheus_answers_the_dashboard(operator: Operator, prometheus: Prometheus):
    scraped = fetch(operator.metrics_url)[1]
    checked = subprocess.run(
        [need_monitoring("promtool"), "check", "metrics"], input=scraped, capture_output=True, check=False, text=True
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")

    def unanswered() -> list[Any]:
        return [(title, query) for title, query in queries() if not prometheus.query(query)]

    assert wait_until(lambda: not unanswered(), PATIENCE), (unanswered(), prometheus.log.read_text())
    (counted,) = prometheus.query("sum(trainop_disruptions_total)")
    assert counted["value"][1] == "1"
    phases = prometheus.query('sum by (phase) (trainop_job_phase_seconds_count{kind="PyTorchJob"}) > 0')
    expected = {"pending": "1", "starting": "1", "running": "2", "restarting": "1"}
    assert {each["metric"]["phase"]: each["value"][1] for each in phases} == expected
    firing = [alert for alert in prometheus.alerts() if alert["state"] == "firing"]
    assert firing == []
    operator.end()
    down = partial(prometheus.query, 'ALERTS{alertname="TrainingOperatorDown", alertstate="pending"}')
    assert wait_until(lambda: bool(down()), PATIENCE), json.dumps(prometheus.alerts())


def test_the_disruptions_that_a_new_leader_counts_first_fire(
    alone: None,
    control_plane: ControlPlane,
    quiet_world: World,
    make_operator: Callable[..., Operator],
    tmp_path: Path,
):
    """Its counters begin with the jobs that exist: otherwise six disruptions would be the first value of a series,
    which is no increase."""
    need_monitoring("prometheus")
    world = quiet_world
    first = make_operator(control_plane.kubeconfig)
    first.start()
    count = 6
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(count, "OnFailure")})
    workers = [f"j-worker-{index}" for index in range(count)]
    pods = world.wait_pods("j-master-0", *workers)
    world.run_pod(*pods)
    world.wait_condition("Running")
    first.end()
    second = make_operator(control_plane.kubeconfig)
    second.start()
    with scraping(second, tmp_path) as prometheus:
        counted = partial(prometheus.query, "sum(trainop_disruptions_total) == 0")
        assert wait_until(lambda: bool(counted()), PATIENCE), prometheus.log.read_text()
        for worker in workers:
            world.set_pod(worker, {"phase": "Failed", "reason": "Evicted"})
        firing = partial(prometheus.query, 'ALERTS{alertname="TrainingJobsDisrupted", alertstate="firing"}')
        assert wait_until(lambda: bool(firing()), PATIENCE), json.dumps(prometheus.alerts())
        (alert,) = firing()
        assert alert["metric"]["job_namespace"] == world.namespace
