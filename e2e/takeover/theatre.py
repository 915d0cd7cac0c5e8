"""A cluster on which one operator replaces another, with everything that happens recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import yaml

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from e2e.peers import PEERS
from e2e.takeover.observers import AuditLog, Kubelet, Recorder, Write
from e2e.takeover.operators import GoOperator, install_certificates
from e2e.takeover.scenes import Stage
from tests.patience import PATIENCE
from tests.server.kinds import GROUP
from tests.server.process import Operator, fetch
from tests.server.world import Json
from trainop.engine.framework import JOB_NAME
from trainop.programs.schemes import FRAMEWORKS

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
APPLY = "application/apply-patch+yaml"
CHILDREN = {
    "Service": "/api/v1/services",
    "HorizontalPodAutoscaler": "/apis/autoscaling/v2/horizontalpodautoscalers",
}
OLD, NEW = "old", "new"
"""The users that training-operator and our operator are, for the audit log."""

Version = tuple[str, str]
"""UID and resourceVersion."""


@cache
def crds_of(peer: str) -> list[Json]:
    """The CRDs of a release of training-operator: some megabytes of YAML, so parsed once and by libyaml if possible."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [yaml.load(path.read_text(), loader) for path in PEERS[peer].crd_files()]


class RecordedCluster:
    """One control plane on which one operator replaces another, with everything that happens recorded."""

    kinds: Sequence[str] = ()
    """The kinds of jobs."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.api, self.folder = plane, plane.api, folder
        self.audit = AuditLog(folder / "audit.log")
        self.recorders: dict[str, Recorder] = {}
        self.operators: list[Operator] = []
        self.record("Pod", "/api/v1/pods")
        self.kubelet = Kubelet(self.api, self.recorders["Pod"])

    def install(self, crds: Iterable[Json]) -> None:
        """Applies CRDs and waits until they are served."""
        for crd in crds:
            name, spec = crd["metadata"]["name"], crd["spec"]
            path = f"{DEFINITIONS}/{name}?fieldManager=kubectl&force=true"
            answer = self.api("PATCH", path, crd, APPLY)
            assert answer.status in {200, 201}, answer
            for version in spec["versions"]:
                url = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
                assert wait_until(lambda url=url: self.api("GET", url).status == 200, PATIENCE), name  # type: ignore[misc]  # mypy cannot infer the lambda

    def record(self, kind: str, path: str, selector: str = "") -> None:
        """Records another kind of objects from now on."""
        self.recorders[kind] = Recorder(self.api, path, selector)

    def close(self) -> None:
        for operator in self.operators:
            if operator.running:
                operator.end()
        self.kubelet.close()
        for recorder in self.recorders.values():
            recorder.close()

    def log_of(self, user: str) -> Path:
        """The log of one more process."""
        return self.folder / f"{user}-{len(self.operators)}.log"

    def config(self, user: str, *, admin: bool = True) -> Path:
        """A kubeconfig of an administrator that impersonates `user`, which the audit log then shows."""
        content = json.loads(self.plane.kubeconfig.read_text())
        groups = ["system:masters"] if admin else ["system:authenticated"]
        content["users"][0]["user"] |= {"as": user, "as-groups": groups}
        path = self.folder / f"{user}.kubeconfig"
        path.write_text(json.dumps(content))
        return path

    def versions(self) -> dict[str, Version]:
        """`Kind namespace/name` -> UID and resourceVersion of everything that exists."""
        found = {}
        for kind, recorder in self.recorders.items():
            for name, each in recorder.sync().items():
                found[f"{kind} {name}"] = (each["metadata"]["uid"], each["metadata"]["resourceVersion"])
        return found

    def writes(self, user: str, since: int, *, events: bool = False) -> list[Write]:
        return self.audit.writes(user, since, events=events)

    def wait_reconciled(self, operator: Operator, user: str, jobs: int) -> None:
        """Waits until the operator has reconciled so many jobs and writes nothing any more."""
        assert wait_until(lambda: reconciles(operator) >= jobs, PATIENCE), operator.text()[-3000:]
        self.audit.wait_quiet(user)


class Theatre(RecordedCluster):
    """A cluster with the CRDs of one release of training-operator."""

    def __init__(self, plane: ControlPlane, peer: str, folder: Path) -> None:
        super().__init__(plane, folder)
        self.peer = peer
        self.certificates = install_certificates(plane, folder / "certificates")
        crds = crds_of(peer)
        self.install(crds)
        served = {crd["spec"]["names"]["kind"] for crd in crds}
        self.kinds = [kind for kind in FRAMEWORKS if kind in served]
        paths = CHILDREN | {kind: f"{GROUP}/{FRAMEWORKS[kind].resource.plural}" for kind in self.kinds}
        for kind, path in paths.items():
            self.record(kind, path, JOB_NAME if kind == "Service" else "")  # not the service `kubernetes`

    # operators

    def old(self, *flags: str) -> GoOperator:
        """A process of training-operator, not started."""
        operator = GoOperator(self.log_of(OLD), self.peer, self.config(OLD), self.certificates, *flags)
        self.operators.append(operator)
        return operator

    def new(self, *flags: str, environment: Mapping[str, str] | None = None, user: str = NEW) -> Operator:
        """A process of our operator, not started. It serves webhooks only if `MY_POD_NAMESPACE` is set. `user` is an
        administrator only by default."""
        config = self.config(user, admin=user == NEW)
        operator = Operator(self.log_of(NEW), f"--kubeconfig={config}", *flags, environment=environment)
        self.operators.append(operator)
        return operator

    def mount_secret(self, data: Mapping[str, bytes]) -> None:
        """Updates the files that training-operator sees, as the kubelet does."""
        for name, content in data.items():
            (self.certificates / name).write_bytes(content)

    def wait_settled(self, operator: Operator, user: str) -> None:
        """Waits until the operator has reconciled every job and writes nothing any more."""
        self.wait_reconciled(operator, user, sum(len(self.recorders[kind].sync()) for kind in self.kinds))

    # objects

    def stages(self) -> dict[str, Stage]:
        """A new namespace for each kind."""
        return {kind: Stage(self.api, FRAMEWORKS[kind]) for kind in self.kinds}


def reconciles(operator: Operator) -> float:
    """The number of reconciles so far, as the operator's metrics count them."""
    text = fetch(operator.metrics_url)[1]
    found = re.findall(r"^controller_runtime_reconcile_total\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))
