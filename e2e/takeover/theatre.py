"""A cluster on which one operator replaces another, with everything that happens recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
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
from trainop.operator import FRAMEWORKS

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
APPLY = "application/apply-patch+yaml"
CHILDREN = {
    "Pod": "/api/v1/pods",
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


class Theatre:
    """One control plane with the CRDs of one release of training-operator, and the operators on it."""

    def __init__(self, plane: ControlPlane, peer: str, folder: Path) -> None:
        self.plane, self.api, self.peer, self.folder = plane, plane.api, peer, folder
        self.audit = AuditLog(folder / "audit.log")
        self.certificates = install_certificates(plane, folder / "certificates")
        crds = crds_of(peer)
        self.install(crds)
        served = {crd["spec"]["names"]["kind"] for crd in crds}
        self.kinds = [kind for kind in FRAMEWORKS if kind in served]
        paths = CHILDREN | {kind: f"{GROUP}/{FRAMEWORKS[kind].resource.plural}" for kind in self.kinds}
        labelled = {kind: JOB_NAME if kind == "Service" else "" for kind in paths}  # not the service `kubernetes`
        self.recorders = {kind: Recorder(self.api, path, labelled[kind]) for kind, path in paths.items()}
        self.kubelet = Kubelet(self.api, self.recorders["Pod"])
        self.operators: list[Operator] = []

    def install(self, crds: Iterable[Json]) -> None:
        """Applies CRDs and waits until they are served."""
        for crd in crds:
            name, spec = crd["metadata"]["name"], crd["spec"]
            path = f"{DEFINITIONS}/{name}?fieldManager=kubectl&force=true"
            answer = self.api("PATCH", path, crd, APPLY)
            assert answer.status in {200, 201}, answer
            url = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            assert wait_until(lambda url=url: self.api("GET", url).status == 200, PATIENCE), name  # type: ignore[misc]  # mypy cannot infer the lambda

    def record(self, kind: str, path: str) -> None:
        """Records another kind of children."""
        self.recorders[kind] = Recorder(self.api, path)

    def close(self) -> None:
        for operator in self.operators:
            if operator.running:
                operator.end()
        self.kubelet.close()
        for recorder in self.recorders.values():
            recorder.close()

    # operators

    def old(self, *flags: str) -> GoOperator:
        """A process of training-operator, not started."""
        log = self.folder / f"old-{len(self.operators)}.log"
        operator = GoOperator(log, self.peer, self._config(OLD), self.certificates, *flags)
        self.operators.append(operator)
        return operator

    def new(self, *flags: str, environment: Mapping[str, str] | None = None, user: str = NEW) -> Operator:
        """A process of our operator, not started. It serves webhooks only if `MY_POD_NAMESPACE` is set. `user` is an
        administrator only by default."""
        log = self.folder / f"new-{len(self.operators)}.log"
        operator = Operator(log, f"--kubeconfig={self._config(user)}", *flags, environment=environment)
        self.operators.append(operator)
        return operator

    def mount_secret(self, data: Mapping[str, bytes]) -> None:
        """Updates the files that training-operator sees, as the kubelet does."""
        for name, content in data.items():
            (self.certificates / name).write_bytes(content)

    def _config(self, user: str) -> Path:
        """A kubeconfig of an administrator that impersonates `user`, which the audit log then shows."""
        content = json.loads(self.plane.kubeconfig.read_text())
        groups = ["system:masters"] if user in {OLD, NEW} else ["system:authenticated"]
        content["users"][0]["user"] |= {"as": user, "as-groups": groups}
        path = self.folder / f"{user}.kubeconfig"
        path.write_text(json.dumps(content))
        return path

    def wait_settled(self, operator: Operator, user: str) -> None:
        """Waits until the operator has reconciled every job and writes nothing any more."""
        jobs = sum(len(self.recorders[kind].sync()) for kind in self.kinds)
        assert wait_until(lambda: reconciles(operator) >= jobs, PATIENCE), operator.text()[-3000:]
        self.audit.wait_quiet(user)

    # objects

    def stages(self) -> dict[str, Stage]:
        """A new namespace for each kind."""
        return {kind: Stage(self.api, FRAMEWORKS[kind]) for kind in self.kinds}

    def versions(self) -> dict[str, Version]:
        """`Kind namespace/name` -> UID and resourceVersion of everything that exists."""
        found = {}
        for kind, recorder in self.recorders.items():
            for name, each in recorder.sync().items():
                found[f"{kind} {name}"] = (each["metadata"]["uid"], each["metadata"]["resourceVersion"])
        return found

    def writes(self, user: str, since: int, *, events: bool = False) -> list[Write]:
        return self.audit.writes(user, since, events=events)


def reconciles(operator: Operator) -> float:
    """The number of reconciles so far, as the operator's metrics count them."""
    text = fetch(operator.metrics_url)[1]
    found = re.findall(r"^controller_runtime_reconcile_total\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))
