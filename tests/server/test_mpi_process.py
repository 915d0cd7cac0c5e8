"""`trainop mpi-operator` as a process: its lease, its probes, and an API server without the CRD."""

from __future__ import annotations

import http.server
import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.server.process import Operator, fetch
from tests.server.test_mpi import V2, MpiWorld, mpi_job

NUMBERS = itertools.count(1)
SHIM = """\
import os, sys
from dataclasses import replace
from trainop.programs import mpi_operator
from trainop.cli import run_mpi_operator
read = mpi_operator.read_mpi_settings
def moved(args, environ):
    settings, rest = read(args, environ)
    assert settings.health_probe_bind_address == ":8080"
    return replace(settings, health_probe_bind_address=os.environ["PROBES"]), rest
mpi_operator.read_mpi_settings = moved
sys.exit(run_mpi_operator(sys.argv[1:], "mpi-operator"))
"""
"""The command with another port for probes, which has no flag: 8080 may be taken on this machine."""


class MpiOperator(Operator):
    """`trainop mpi-operator`, with upstream's flags."""

    def __init__(self, log: Path, *flags: str) -> None:
        super().__init__(log)
        port = self.metrics_url.split(":")[2].split("/")[0]
        self.environment["PROBES"] = self.probe_url.removeprefix("http://")
        self.command = [sys.executable, "-c", SHIM, "-alsologtostderr", f"--monitoring-port={port}", *flags]


@pytest.fixture
def make_mpi_operator(tmp_path: Path) -> Iterator[Callable[..., MpiOperator]]:
    made: list[MpiOperator] = []

    def make(*flags: str) -> MpiOperator:
        made.append(MpiOperator(tmp_path / f"mpi-operator-{len(made)}.log", *flags))
        return made[-1]

    yield make
    for operator in made:
        if operator.running:
            operator.end()


def is_healthy(operator: Operator) -> bool:
    return operator.probe("/healthz")[0] == 200


@pytest.mark.case("mpi-v2beta1-40", "bc")
def test_leader_and_standby(control_plane: ControlPlane, alone: None, make_mpi_operator: Callable[..., MpiOperator]):
    del alone
    world = MpiWorld(control_plane.api, f"mpiprocess{next(NUMBERS)}")
    where = f"--lock-namespace={world.namespace}", f"--namespace={world.namespace}"
    config = f"--kubeConfig={control_plane.kubeconfig}"
    first = make_mpi_operator(config, *where)
    first.start()
    path = f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases/mpi-operator"
    lease = world.wait(lambda: world.exists(path) and world.ask("GET", path)["spec"], "the lease")
    assert lease["leaseDurationSeconds"] == 15
    second = make_mpi_operator(config, *where)
    second.start(wait=False)
    for operator in (first, second):
        world.wait(partial(is_healthy, operator), "/healthz")
    world.create(mpi_job("j", V2, 1))
    world.wait(lambda: "j-worker-0" in world.pods(), "the worker")
    series = f'mpi_operator_job_info{{launcher="j-launcher",namespace="{world.namespace}"}}'
    world.wait(lambda: first.metric(series) == 1, "the launcher's series")
    assert first.metric("mpi_operator_jobs_created_total") == first.metric("mpi_operator_is_leader") == 1
    assert second.metric(series) is None
    assert second.metric("mpi_operator_is_leader") == 0
    holder = world.ask("GET", path)["spec"]["holderIdentity"]
    assert first.end() == 0
    world.wait(lambda: world.ask("GET", path)["spec"].get("holderIdentity") not in {None, "", holder}, "the standby")
    world.wait(lambda: second.metric("mpi_operator_is_leader") == 1, "the standby's lead")
    world.wait(lambda: second.metric(series) == 1, "the launcher's series")


class NothingServed(http.server.BaseHTTPRequestHandler):
    """An API server without any kind."""

    def do_GET(self) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        body = json.dumps(status).encode()
        self.send_response(404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.mark.case("mpi-v2beta1-40", "e")
def test_without_the_crd_the_process_exits(tmp_path: Path, make_mpi_operator: Callable[..., MpiOperator]):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), NothingServed)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        }
        (tmp_path / "config").write_text(json.dumps(config))
        operator = make_mpi_operator(f"--kubeConfig={tmp_path / 'config'}")
        operator.start(wait=False)
        assert operator.exit_code() == 1
        assert "the CRD mpijobs.kubeflow.org does not exist; install it first: kubectl apply" in operator.text()
        assert fetch(operator.metrics_url)[0] == 0
    finally:
        server.shutdown()
        server.server_close()
