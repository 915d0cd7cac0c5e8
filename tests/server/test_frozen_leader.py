"""Writes of a stopped leader after its successor has taken over, counted in the audit log of a real API server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from tests.conftest import start_control_plane
from tests.patience import PATIENCE
from tests.server.crowd import PodRecorder
from tests.server.process import Operator
from tests.server.test_election import LEASE, holder
from tests.server.world import CORE, Json, World, replicas

MakeOperator = Callable[..., Operator]
WORKERS = 400
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Request", "verbs": ["create", "patch"], "resources": [{"group": "", "resources": ["events"]}]},
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    ],
}


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "audit.log"


@pytest.fixture(scope="module")
def audited(audit: Path) -> Iterator[ControlPlane]:
    """A control plane that appends a line to `audit` for each write before answering it."""
    policy = audit.with_name("policy.json")
    policy.write_text(json.dumps(POLICY))
    flags = (f"kube-apiserver=--audit-policy-file={policy}", f"kube-apiserver=--audit-log-path={audit}")
    yield from start_control_plane("audited", ClusterOptions(flags=flags))


def config_as(plane: ControlPlane, name: str, path: Path) -> Path:
    """A kubeconfig of an administrator that impersonates `name`, which the audit log then shows."""
    content = json.loads(plane.kubeconfig.read_text())
    content["users"][0]["user"] |= {"as": name, "as-groups": ["system:masters"]}
    path.write_text(json.dumps(content))
    return path


def writes(audit: Path, name: str, since: datetime | None = None) -> list[str]:
    """Verb and kind of each write requested by `name`, without those that need no lease: LeaderElection events, and a
    renewal that was under way at the stop, which `resourceVersion` makes harmless: the server refuses it."""
    found = []
    for line in audit.read_text().splitlines():
        entry: Json = json.loads(line)
        received = datetime.fromisoformat(entry["requestReceivedTimestamp"])
        announced = (entry.get("requestObject") or {}).get("reason") == "LeaderElection"
        refused_renewal = entry["objectRef"]["resource"] == "leases" and entry["responseStatus"]["code"] == 409
        if (
            entry.get("impersonatedUser", {}).get("username") == name
            and not announced
            and not refused_renewal
            and (not since or received > since)
        ):
            found.append(f"{entry['verb']} {entry['objectRef']['resource']}")
    return found


def acquired_at(world: World) -> datetime:
    """The acquire time of the lease, by the clock that operator and API server share."""
    lease = world.ask("GET", f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases/{LEASE}")
    return datetime.fromisoformat(lease["spec"]["acquireTime"])


def made(world: World) -> int:
    page = world.ask("GET", f"{CORE}/pods?limit=1")
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))


@pytest.mark.parametrize("moment", ["between two jobs", "while it creates the children of a large job"])
def test_what_a_frozen_leader_writes(
    audited: ControlPlane,
    audit: Path,
    make_operator: MakeOperator,
    record_pods: Callable[[World], PodRecorder],
    tmp_path: Path,
    moment: str,
):
    """A request that was not handed to the kernel before the stop never reaches the server after the takeover. Requests
    handed over earlier arrived long before, because loopback loses nothing."""
    working = moment.startswith("while")
    world = World(audited.api, "working" if working else "idle")
    recorder = record_pods(world)
    flags = ("--leader-elect", f"--leader-election-namespace={world.namespace}", f"--namespace={world.namespace}")
    names = [f"{world.namespace}-{which}" for which in ("first", "second")]
    first, second = (make_operator(config_as(audited, name, tmp_path / name), *flags) for name in names)
    first.start()
    assert wait_until(lambda: bool(holder(world)), PATIENCE), first.text()
    leader = holder(world)
    second.start()
    world.create_job("small", {"Worker": replicas(2)})
    world.wait(lambda: made(world) == 2, "the pods of the small job")
    before = made(world)
    if working:
        world.create_job("large", {"Worker": replicas(WORKERS)})
        assert wait_until(lambda: made(world) > before + 5, PATIENCE, every=0.001)
    with first.frozen():
        at_stop = made(world)
        if not working:
            world.create_job("large", {"Worker": replicas(WORKERS)})
        world.wait(lambda: holder(world) not in {"", leader}, "another leader")
        led = acquired_at(world)
        world.wait(lambda: made(world) == WORKERS + before, "the pods of the large job")
    assert at_stop < WORKERS, "the stopped leader had work left"
    assert first.exit_code() == 1
    assert holder(world) != leader
    world.settle()
    assert writes(audit, names[0], led) == []
    assert "create pods" in writes(audit, names[0])
    assert writes(audit, names[1], led).count("create pods") >= WORKERS - at_stop
    everything = ["small-worker-0", "small-worker-1", *(f"large-worker-{index}" for index in range(WORKERS))]
    assert recorder.made() == Counter(everything), "no pod was created twice"
    assert second.end() == 0
