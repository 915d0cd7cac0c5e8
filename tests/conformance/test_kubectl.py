"""kubectl commands against the embedded and the real API server must print the same."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance.client import Backend, Call
from tests.needs import KUBECTLS, need_program
from tests.patience import PATIENCE
from trainop.runtime.objects.metadata import Json

NAMESPACES = itertools.count(1)


@dataclass(frozen=True)
class Line:
    """One command; its output, including stderr, must match the pattern `says`."""

    command: str
    says: str
    fails: bool = False
    sent: Json | None = None
    """Standard input of the command."""


def create(arguments: str, name: str) -> Line:
    return Line(f"create {arguments}", f"^{name.replace('.', '[.]')} created$")


def fields(what: str, path: str, says: str) -> Line:
    return Line(f"get {what} -o jsonpath={{{path}}}", says)


PROJECTED = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {
        "serviceAccountName": "default",
        "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "t", **PROJECTED}],
    },
}
TABLE: dict[str, Sequence[Line]] = {
    "job": [
        create("job j --image=python:3 -- python -c pass", "job.batch/j"),
        fields("job/j", ".spec.template.spec.containers[0].command", r'^\["python","-c","pass"\]$'),
        fields("job/j", ".spec['backoffLimit','completions','parallelism']", "^6 1 1$"),
        Line("describe job j", "(?s)Completion Mode: +NonIndexed.*python:3"),
        Line("delete job j", 'job.batch "j" deleted'),
    ],
    "deployment": [
        create("deployment d --image=python:3 --replicas=2 --port=80", "deployment.apps/d"),
        fields("deploy/d", ".spec.replicas", "^2$"),
        Line("set image deploy/d python=python:4", "deployment.apps/d image updated"),
        fields("deploy/d", ".spec.template.spec.containers[0]['image','ports']", r'^python:4 \[\{"containerPort":80'),
        Line("scale deploy d --replicas=3", "deployment.apps/d scaled"),
        Line("rollout restart deploy d", "deployment.apps/d restarted"),
        Line("describe deploy d", "(?s)Replicas: +3 desired.*25% max unavailable.*python:4.*Port: +80/TCP"),
        Line("autoscale deploy d --max=3", "d autoscaled"),
        Line("describe hpa d", "(?s)Reference: +Deployment/d.*Max replicas: +3"),
        Line("expose deploy d", "service/d exposed"),
        fields("svc/d", ".spec.ports[0].port", "^80$"),
    ],
    "rights": [
        create("role r --verb=get,list --resource=pods --resource-name=x", "role.rbac.authorization.k8s.io/r"),
        Line("describe role r", r"pods +\[\] +\[x\] +\[get list\]"),
        create(
            "rolebinding b --role=r --user=u --group=g --serviceaccount=$ns:s",
            "rolebinding.rbac.authorization.k8s.io/b",
        ),
        Line("describe rolebinding b", r"(?s)Name:  r\n.*User +u.*Group +g.*ServiceAccount +s +\S+"),
        create("clusterrole $ns --verb=get --non-resource-url=/x", "clusterrole.rbac.authorization.k8s.io/$ns"),
        create("clusterrolebinding $ns --clusterrole=$ns --user=u", "clusterrolebinding.rbac.authorization.k8s.io/$ns"),
        Line("delete clusterrole,clusterrolebinding $ns", "deleted"),
        Line("auth can-i create pods", "^yes$"),
        Line("auth can-i --list", r"\*\.\* +\[\] +\[\] +\[\*\]"),
    ],
    "quota": [
        create("quota q --hard=pods=3,cpu=1500m", "resourcequota/q"),
        fields("quota/q", ".spec.hard", r'^\{"cpu":"1500m","pods":"3"\}$'),
        Line("describe quota q", "(?s)Name: +q"),
    ],
    "data": [
        create("secret generic s --from-literal=a=b", "secret/s"),
        fields("secret/s", ".data.a", "^Yg==$"),
        create("configmap c --from-literal=a=b", "configmap/c"),
        Line("describe configmap c", "(?s)a:\n----\nb\n"),
    ],
    "accounts": [
        create("serviceaccount a", "serviceaccount/a"),
        Line("create token a --duration=10m", r"^[\w.-]{20,}$"),
        Line("create token a --duration=1m", "may not specify a duration less than 10 minutes", fails=True),
        Line("create token none", 'serviceaccounts? "none" not found', fails=True),
        Line("describe sa a", "Name: +a"),
    ],
    "others": [
        create("namespace $ns-n", "namespace/$ns-n"),
        Line("describe namespace $ns-n", "Status: +Active"),
        create("priorityclass $ns --value=10 --description=x", "priorityclass.scheduling.k8s.io/$ns"),
        Line("describe priorityclass $ns", "(?s)Value: +10.*Description: +x"),
        Line("delete priorityclass $ns", "deleted"),
        create("service clusterip s --tcp=80:8080", "service/s"),
        Line("describe service s", "(?s)Port: +80-8080  80/TCP.*TargetPort: +8080/TCP"),
        create("service nodeport n --tcp=80", "service/n"),
        create("service externalname e --external-name=a.b", "service/e"),
    ],
    "pods": [
        Line("create -f -", "^pod/p created$", sent=POD),
        Line("describe pod p", "TokenExpirationSeconds: +3600"),
        Line("label pod p a=b", "pod/p labeled"),
        Line("annotate pod p a=b", "pod/p annotated"),
        Line("get pods -l a=b --sort-by=.metadata.name -o name", "^pod/p$"),
        Line('patch pod p --type=json -p [{"op":"remove","path":"/metadata/labels/a"}]', "pod/p patched"),
        Line("get pods -o wide", "(?s)^NAME +READY.*p +0/1 +Pending"),
        Line("edit pod p", "Edit cancelled, no changes made"),
        Line("wait --for=jsonpath={.status.phase}=Pending pod/p --timeout=9s", "condition met"),
        Line("explain pod.spec.containers.image", "FIELD: image <string>"),
        Line("events", "(?s)."),
        Line("top pods", "Metrics API not available", fails=True),
        Line("delete pod p --now", 'pod "p" (force )?deleted'),
    ],
}


@pytest.fixture(params=KUBECTLS)
def program(request: pytest.FixtureRequest) -> str:
    return need_program(request.param)


def take(lines: Sequence[Line], program: str, backend: Backend, folder: Path) -> None:
    namespace = f"kubectl-{next(NAMESPACES)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    Call("POST", "/api/v1/namespaces", body, 201).take(backend, {})
    config = str(backend.kubeconfig(folder))
    for line in lines:
        words = line.command.replace("$ns", namespace).split(" ")
        done = subprocess.run(
            [program, "--kubeconfig", config, "--namespace", namespace, *words],
            input=json.dumps(line.sent) if line.sent else "",
            env={"HOME": str(folder), "PATH": os.environ["PATH"], "EDITOR": "true"},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        said = f"{line.command}\n{done.stdout}{done.stderr}"
        assert (done.returncode != 0) == line.fails, said
        wanted = line.says.replace("$ns", namespace)
        assert re.search(wanted, done.stdout + done.stderr, re.MULTILINE), said


@pytest.mark.parametrize("lines", TABLE.values(), ids=TABLE)
def test_embedded(lines: Sequence[Line], program: str, embedded: Backend, tmp_path: Path):
    take(lines, program, embedded, tmp_path)


@pytest.mark.server
@pytest.mark.parametrize("lines", TABLE.values(), ids=TABLE)
def test_real(lines: Sequence[Line], program: str, real: Backend, tmp_path: Path):
    take(lines, program, real, tmp_path)
