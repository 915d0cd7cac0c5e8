"""A tool that resets the `caBundle` of webhook configurations as soon as it is written, on a real kube-apiserver.

Writes are counted and timed by the audit log of the API server. What is expected is what docs/validation.md promises.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.audit import events_of
from tests.kustomize import RBAC_KINDS, combine, rights_of
from tests.server.pod import PodStandIn, deployment_of, flags_of
from tests.server.process import Operator
from tests.server.test_installation import apply
from tests.server.webhooks import JSON_PATCH, DiWebhooks, Webhooks, WebhooksBeside
from tests.server.world import World
from trainop.controllers.admission import configurations_of, webhooks_of
from trainop.engine.seen import Options
from trainop.programs.schemes import KINDS

RESETS = 3
PAUSES = (0.0, 5.0, 10.0)
"""Seconds that at least lie between each write and the next: the first reset is answered at once."""
REQUESTS_PER_CHANGE = 4
"""After a change the operator reads all of its configurations and the Secret, and writes at most one."""


class Installation(NamedTuple):
    """A program that maintains configurations, as an overlay installs it."""

    overlay: str
    components: Sequence[str]
    account: str
    program: Sequence[str]
    parts: Sequence[type[Webhooks]]
    recorded: bool
    """It may write events."""


INSTALLATIONS = {
    "operator": Installation("standalone", ["dijob"], "training-operator", (), (Webhooks, WebhooksBeside), True),
    "di-webhook": Installation(
        "di-system", [], "di-webhook", (sys.executable, "-m", "trainop", "di-webhook"), (DiWebhooks,), False
    ),
}


def test_every_configuration_is_contested():
    kinds = itertools.chain.from_iterable(make(Options()) for make in KINDS.values())
    maintained = {each.name for each in configurations_of(webhooks_of(kinds))}
    assert {name for part in INSTALLATIONS["operator"].parts for name in part.names} == maintained


class Tool:
    """Resets the `caBundle` of all webhooks of a configuration, when all have one, up to `RESETS` times. As tools do
    that apply their own copy, it writes what many manifests have in that place: a line feed."""

    name = "some-tool"
    placeholder = "Cg=="

    def __init__(self, world: World, path: str) -> None:
        self.world = world
        self.path = path
        self.resets = 0

    def look(self) -> int:
        """Resets the bundle if it is there; returns how often this was done."""
        webhooks = self.world.ask("GET", self.path)["webhooks"]
        absent = {None, "", self.placeholder}
        if self.resets < RESETS and not any(each["clientConfig"].get("caBundle") in absent for each in webhooks):
            places = [f"/webhooks/{index}/clientConfig/caBundle" for index in range(len(webhooks))]
            patch = [{"op": "replace", "path": place, "value": self.placeholder} for place in places]
            self.world.ask("PATCH", f"{self.path}?fieldManager={self.name}", patch, JSON_PATCH)
            self.resets += 1
        return self.resets


def when(event: Any, field: str) -> float:
    return datetime.fromisoformat(event[field]).timestamp()


@pytest.mark.parametrize("installation", INSTALLATIONS.values(), ids=INSTALLATIONS)
def test_a_tool_that_resets_the_bundle_is_met_with_pauses_and_one_warning(
    installation: Installation,
    control_plane: ControlPlane,
    quiet_world: World,
    alone: None,
    make_operator: Callable[..., Operator],
    tmp_path: Path,
    kubectl: str,
):
    home = quiet_world.namespace
    overlay, account = installation.overlay, installation.account
    documents = combine(kubectl, tmp_path / "overlay", overlay, installation.components, namespace=home)
    granted = [each for each in documents if each["kind"] in RBAC_KINDS] if installation.recorded else []
    for document in granted or rights_of(documents, account):
        apply(control_plane.api, document)
    pod = PodStandIn(control_plane, tmp_path / "account", make_operator, account=account, program=installation.program)
    flags = flags_of(deployment_of(documents, account))
    if not installation.recorded:  # the default folder may have certificates of other programs of this machine
        flags.append(f"--webhook-cert-dir={tmp_path / 'unmounted'}")
    operator = pod.start(home, *flags, MY_POD_NAMESPACE=home, MY_POD_NAME="operator-0")
    hooks = [part(quiet_world) for part in installation.parts]
    for each in hooks:
        each.install(operator.webhook_port)
    tools = {path: Tool(quiet_world, path) for each in hooks for path in each.configurations()}
    try:
        quiet_world.wait(lambda: min(tool.look() for tool in tools.values()) == RESETS, "the resets")
        for each in hooks:
            each.wait_injected()
        warned = [line for line in operator.text().splitlines() if "CA bundle is reset again and again" in line]
        assert len(warned) == len(tools), "one warning for each configuration"
        assert all(Tool.name in line for line in warned)
        if installation.recorded:
            quiet_world.wait(lambda: len(quiet_world.events("CABundleReset")) == len(tools), "the events")
            for event in quiet_world.events("CABundleReset"):
                assert event["message"].startswith(f"{Tool.name} has reset caBundle of ")
                assert (event["type"], event.get("count", 1)) == ("Warning", 1)
        changes = (RESETS + 1 + RESETS) * len(tools)
        for path in tools:
            name = path.rpartition("/")[2]
            labels = f'{{configuration="{name}"}}'
            assert operator.metric(f"trainop_webhook_bundle_resets_total{labels}") == RESETS
            asked = [each for each in events_of(control_plane, home, account) if of(each, path)]
            assert len(asked) <= REQUESTS_PER_CHANGE * changes, "no loop without a pause"
            writes = [each for each in asked if each["verb"] == "patch" and each["responseStatus"]["code"] == 200]
            assert len(writes) == 1 + RESETS, "it is written once, and once for each reset"
            ends = [when(each, "stageTimestamp") for each in writes]
            pauses = [when(each, "requestReceivedTimestamp") - end for each, end in zip(writes[1:], ends, strict=False)]
            assert [pause >= least for pause, least in zip(pauses, PAUSES, strict=True)] == [True] * RESETS, pauses
    finally:
        for each in hooks:
            each.remove()


def of(event: Any, path: str) -> bool:
    """Whether a request concerned this configuration."""
    about = event.get("objectRef") or {}
    return path.endswith(f"/{about.get('resource')}/{about.get('name')}")
