"""Denied permissions are reported by name, once per interval."""

from __future__ import annotations

import msgspec
import pytest
import structlog

from tests.runtime.scripted import ScriptedTransport, Streamed
from tests.runtime.virtual_time import VirtualClock
from trainop.runtime.client.client import Client
from trainop.runtime.client.permissions import MAX_PERMISSIONS, REPORT_INTERVAL, MissingPermissions, Permission
from trainop.runtime.client.transport import Request, Response
from trainop.runtime.errors import ForbiddenError
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import SERVICES

USER = 'User "system:serviceaccount:kubeflow:training-operator"'


def denied(text: str) -> bytes:
    return msgspec.json.encode({"kind": "Status", "code": 403, "reason": "Forbidden", "message": text})


def forbidden(text: str) -> ForbiddenError:
    return ForbiddenError(403, "Forbidden", text, {})


class SteppedClock(VirtualClock):
    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.mark.parametrize(
    ("text", "permission"),
    [
        # recorded from kube-apiserver 1.34
        (
            f'services is forbidden: {USER} cannot create resource "services" in API group "" in the namespace "ns1"',
            "create services",
        ),
        (
            f'{USER} cannot patch resource "pytorchjobs/status" in API group "kubeflow.org" in the namespace "ns1"',
            "patch pytorchjobs.kubeflow.org/status",
        ),
        (f'pods is forbidden: {USER} cannot list resource "pods" in API group "" at the cluster scope', "list pods"),
        # refusals that are no lack of permission
        ('pods "j-master-0" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0', None),
        ('pods "j-master-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true', None),
    ],
)
async def test_only_lacking_permissions_are_counted_and_named(text: str, permission: str | None):
    metrics = Metrics()
    missing = MissingPermissions(SteppedClock(), metrics)
    named: list[str] = []
    missing.announce = lambda permission, _message: named.append(str(permission))
    transport = ScriptedTransport(Response(403, {}, denied(text)), Streamed([denied(text)], 403))
    client = Client(transport, denied=missing.report)
    with pytest.raises(ForbiddenError):
        await client.get(SERVICES, "x", "ns1")
    with pytest.raises(ForbiddenError):
        await client.open(Request("GET", "/api/v1/services"))
    assert named == ([permission] if permission else [])
    counted = [sample for family in metrics.permissions_denied.collect() for sample in family.samples]
    assert [sample.value for sample in counted] == ([2.0] if permission else [])


def test_each_permission_is_logged_once_per_interval():
    clock = SteppedClock()
    missing = MissingPermissions(clock, Metrics())
    create = forbidden(f'{USER} cannot create resource "pods" in API group "" in the namespace "a"')
    delete = forbidden(f'{USER} cannot delete resource "pods" in API group "" in the namespace "a"')
    with structlog.testing.capture_logs() as logs:
        for error in (create, create, delete, create):
            missing.report(error)
        clock.seconds = REPORT_INTERVAL
        missing.report(create)
    assert [(entry["event"], entry["permission"], entry["repeats"]) for entry in logs] == [
        ("permission denied", "create pods", 0),
        ("permission denied", "delete pods", 0),
        ("permission denied", "create pods", 2),
    ]
    assert {entry["namespace"] for entry in logs} == {"a"}


def test_kinds_of_which_the_permission_is_optional_are_missed_only_by_writes():
    named: list[str] = []
    missing = MissingPermissions(SteppedClock(), Metrics(), optional=[SERVICES])
    missing.announce = lambda permission, _message: named.append(str(permission))
    for verb in ("list", "watch", "create"):
        missing.report(forbidden(f'{USER} cannot {verb} resource "services" in API group "" at the cluster scope'))
    assert named == ["create services"]


def test_what_is_remembered_is_bounded():
    named: set[Permission] = set()
    missing = MissingPermissions(SteppedClock(), Metrics())
    missing.announce = lambda permission, _message: named.add(permission)
    for number in range(MAX_PERMISSIONS + 10):
        missing.report(forbidden(f'{USER} cannot get resource "r{number}" in API group "x" at the cluster scope'))
    assert len(named) == MAX_PERMISSIONS
