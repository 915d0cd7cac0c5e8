"""The audit log of the shared API server: rights that a service account has used, and requests that were forbidden."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from e2e.cluster.controlplane import ControlPlane

POLICY = Path(__file__).with_name("audit-policy.yaml")
LOG = "audit.log"


class Right(NamedTuple):
    group: str
    resource: str
    """With its subresource: `pods/exec`."""
    verb: str


def flags(data: Path) -> tuple[str, ...]:
    """The options of a control plane in `data` that turn its audit log on."""
    return (
        f"kube-apiserver=--audit-policy-file={POLICY}",
        f"kube-apiserver=--audit-log-path={data / LOG}",
    )


def granted(roles: Iterable[Any]) -> set[Right]:
    return {
        Right(group, resource, verb)
        for role in roles
        for rule in role.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def events_of(plane: ControlPlane, namespace: str, account: str) -> Iterator[Any]:
    """The audit events of the requests of a service account."""
    user = f"system:serviceaccount:{namespace}:{account}"
    with (plane.data / LOG).open(encoding="utf-8") as lines:
        for line in lines:
            if (event := json.loads(line))["user"]["username"] == user:
                yield event


def requested(plane: ControlPlane, namespace: str, account: str, decision: str = "allow") -> set[Right]:
    """The rights that the requests of a service account needed, of those with this decision of the authorizer."""
    found = set()
    for event in events_of(plane, namespace, account):
        about = event.get("objectRef")
        if about and event["annotations"]["authorization.k8s.io/decision"] == decision:
            resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            found.add(Right(about.get("apiGroup", ""), resource, event["verb"]))
            if event["verb"] == "patch" and event["responseStatus"]["code"] == 201:  # an apply that creates
                found.add(Right(about.get("apiGroup", ""), resource, "create"))
    return found
