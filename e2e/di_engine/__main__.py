"""DI-engine's operator client (PyPI `DI-engine`) against our di-server on a real kube-apiserver.

python -m e2e.di_engine

The client is installed without DI-engine's dependencies, of which it needs three small ones, into
$TRAINOP_DI_ENGINE or ~/.cache/trainop-di-engine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from e2e.clients import environment, on_an_api_server
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import free_ports, wait_until
from tests.patience import PATIENCE
from tests.server.process import Operator, fetch
from tests.server.world import Json, World

ROOT = Path(__file__).parents[2]
VERSION = "0.5.3"
NEEDS = ("requests", "URLObject", "flask")
"""What the modules of the client import."""
API = "/apis/diengine.opendilab.org/v1alpha1/namespaces/{namespace}"
CORE = "/api/v1/namespaces/{namespace}"


def template(**limits: str) -> Json:
    container: Json = {"name": "di-container", "image": "none"}
    return {
        "template": {"spec": {"containers": [{**container, **({"resources": {"limits": limits}} if limits else {})}]}}
    }


def install(plane: ControlPlane) -> World:
    """The CRDs, an AggregatorConfig and a job, whose coordinator the operator makes."""
    for kind in ("dijobs", "aggregatorconfigs"):
        crd = yaml.safe_load((ROOT / "manifests" / "crds" / f"{kind}.diengine.opendilab.org.yaml").read_text())
        answer = plane.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        assert answer.status == 201, answer
        path = f"/apis/diengine.opendilab.org/v1alpha1/{kind}"
        assert wait_until(lambda path=path: plane.api("GET", path).status == 200, PATIENCE), path  # type: ignore[misc]  # mypy cannot infer the lambda
    system, world = World(plane.api, "di-system"), World(plane.api, "rl")
    version = "diengine.opendilab.org/v1alpha1"
    shared = {"apiVersion": version, "kind": "AggregatorConfig", "metadata": {"name": "aggregator-config"}}
    system.ask("POST", f"{API}/aggregatorconfigs", {**shared, "spec": {"aggregator": template()}})
    spec = {role: template() for role in ("coordinator", "collector", "learner")}
    job = {"apiVersion": version, "kind": "DIJob", "metadata": {"name": "cartpole"}, "spec": spec}
    world.ask("POST", f"{API}/dijobs", job)
    return world


def talk(python: Path, plane: ControlPlane, folder: Path) -> int:
    """Runs both programs and the client; the client's exit code."""
    world = install(plane)
    operator = Operator(folder / "operator.log", f"--kubeconfig={plane.kubeconfig}", "--enable-scheme=DIJob")
    (port,) = free_ports(1)
    flags = [f"--kubeconfig={plane.kubeconfig}", f"--server-bind-address=127.0.0.1:{port}", "--caller-check=off"]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "trainop", "di-server", *flags], stdout=log, stderr=log, cwd=ROOT
        )
    try:
        operator.start()
        world.wait(lambda: "cartpole-coordinator" in world.pods(), "the coordinator")
        assert wait_until(lambda: fetch(f"http://127.0.0.1:{port}/healthz")[0] == 200, PATIENCE)
        client = [str(python), str(Path(__file__).with_name("client.py"))]
        done = subprocess.run([*client, "127.0.0.1", str(port), "rl", "cartpole-coordinator"], check=False)
        if done.returncode:
            print((folder / "server.log").read_text(errors="replace"), file=sys.stderr)
        return done.returncode
    finally:
        server.terminate()
        server.wait(PATIENCE)
        if operator.running:
            operator.end()


def main() -> int:
    python = environment("di-engine", VERSION, NEEDS, ["--no-deps", f"DI-engine=={VERSION}"])
    return on_an_api_server("di-engine", lambda plane, folder: talk(python, plane, folder))


if __name__ == "__main__":
    sys.exit(main())
