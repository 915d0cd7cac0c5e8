"""`trainop di-webhook` as the overlay di-system installs it, called by a real API server."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.certificates import Authority
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from tests.audit import granted, requested
from tests.kustomize import RBAC_KINDS, combine, rights_of
from tests.patience import PATIENCE
from tests.server.conftest import NUMBERS
from tests.server.pod import PodStandIn, deployment_of, flags_of
from tests.server.process import Operator
from tests.server.test_installation import apply
from tests.server.webhooks import DIJOBS, JSON_PATCH, DiWebhooks, WebhooksBeside, dijob, served_certificate
from tests.server.world import MERGE, Json, World

MakeOperator = Callable[..., Operator]
ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "trainop", "di-webhook")
DENIED = 'admission webhook "vdijob.kb.io" denied the request: '
TEMPLATES = [
    *(("dijobs", "DIJob", section) for section in ("coordinator", "collector", "learner")),
    ("aggregatorconfigs", "AggregatorConfig", "aggregator"),
]
"""The pod templates of DI-orchestrator's resources: resource, kind and section of the spec."""
POLICIES = "expected in [None, Running, All]"


@pytest.fixture(scope="module")
def hooks(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiWebhooks]:
    """A di-webhook with failure policy Fail, for all tests that only ask it."""
    installed = DiWebhooks(World(control_plane.api, f"di{next(NUMBERS)}"))
    log = tmp_path_factory.mktemp("di-webhook") / "log"
    process = Operator(
        log,
        *(f"--kubeconfig={control_plane.kubeconfig}", unmounted(log.parent)),
        environment=installed.environment,
        program=PROGRAM,
    )
    installed.install(process.webhook_port, "Fail")
    process.start()
    installed.wait_called()
    yield installed
    process.end()
    installed.remove()


def unmounted(folder: Path) -> str:
    """No certificate is mounted. In the default folder may be those of other programs of this machine."""
    return f"--webhook-cert-dir={folder / 'unmounted'}"


def stored(hooks: DiWebhooks, name: str) -> Json:
    found: Json = hooks.world.ask("GET", f"{DIJOBS}/{name}")
    return found


@pytest.mark.case("di-orchestrator-11", "ab")
def test_the_policy_is_stored_as_defaulted_and_normalised(hooks: DiWebhooks):
    for policy, wanted in ((None, "Running"), ("", "Running"), ("ALL", "All"), ("None", "None")):
        answer = hooks.try_dijob(policy)
        assert (answer.status, answer.body["spec"]["cleanPodPolicy"]) == (201, wanted), policy
        assert answer.warnings == []
    assert hooks.try_dijob("", "updated", query="").status == 201
    for policy, wanted in (("None", "None"), ("", "Running"), ("ALL", "All"), (None, "Running")):
        patch = {"spec": {"cleanPodPolicy": policy}}
        answer = hooks.send("PATCH", f"{DIJOBS}/updated", patch, MERGE)
        assert answer.status == 200, answer
        assert stored(hooks, "updated")["spec"]["cleanPodPolicy"] == wanted, policy


@pytest.mark.case("di-orchestrator-11", "c")
def test_an_unknown_policy_is_refused(hooks: DiWebhooks):
    answer = hooks.try_dijob("hello")
    assert (answer.status, answer.body["code"]) == (403, 403)
    assert answer.message == f"{DENIED}Invalid CleanPodPolicy hello, {POLICIES}"
    assert hooks.try_dijob("All", "changed", query="").status == 201
    answer = hooks.send("PATCH", f"{DIJOBS}/changed", {"spec": {"cleanPodPolicy": "sdft"}}, MERGE)
    assert (answer.status, answer.message) == (403, f"{DENIED}Invalid CleanPodPolicy sdft, {POLICIES}")
    assert stored(hooks, "changed")["spec"]["cleanPodPolicy"] == "All"


def test_nothing_but_the_policy_is_changed(hooks: DiWebhooks):
    """A later Kubernetes may add fields to pods, and users label their pods."""
    template: Json = {
        "metadata": {"labels": {"mine": "x"}, "annotations": {"a": "b"}},
        "spec": {"containers": [{"name": "di-container", "image": "none", "fieldOfTomorrow": {"x": [1]}}]},
    }
    answer = hooks.try_dijob(
        None, coordinator={"template": template}, volumes=[{"name": "v", "ephemeralOfTomorrow": {}}]
    )
    assert answer.status == 201, answer
    assert answer.body["spec"] == {
        "cleanPodPolicy": "Running",
        "coordinator": {"template": template},
        "volumes": [{"name": "v", "ephemeralOfTomorrow": {}}],
    }


@pytest.mark.parametrize(("plural", "kind", "section"), TEMPLATES)
def test_a_misspelt_field_of_a_template_is_a_warning(hooks: DiWebhooks, plural: str, kind: str, section: str):
    container = {"name": "di-container", "image": "none", "envs": []}
    good = {"template": {"spec": {"containers": [{"name": "di-container", "image": "none"}]}}}
    others = {"cleanPodPolicy": "All", "coordinator": good} if kind == "DIJob" else {}
    body: Json = {
        "apiVersion": "diengine.opendilab.org/v1alpha1",
        "kind": kind,
        "metadata": {"name": "misspelt"},
        "spec": {**others, section: {"template": {"spec": {"containers": [container]}}}},
    }
    path = DIJOBS.replace("dijobs", plural)
    answer = hooks.send("POST", f"{path}?dryRun=All", body)
    field = f"spec.{section}.template.spec.containers[0].envs"
    assert (answer.status, answer.warnings) == (201, [f'{field}: unknown field, did you mean "env"?'])
    del container["envs"]
    answer = hooks.send("POST", f"{path}?dryRun=All", body)
    assert (answer.status, answer.warnings) == (201, [])


def test_what_can_never_work_is_refused(hooks: DiWebhooks):
    volume = {"name": "v", "emptyDir": {}}
    own = {"spec": {"containers": [{"name": "di-container", "image": "none"}], "volumes": [volume]}}
    for answer, wanted in (
        (hooks.try_dijob("All", coordinator={"template": {"spec": {"containers": []}}}), "containers"),
        (hooks.try_dijob("All", "1a"), "metadata.name"),
        (hooks.try_dijob("All", "a.b"), "metadata.name"),
        (hooks.try_dijob("All", "a" * 52), "metadata.name"),
        (hooks.try_dijob("All", volumes=[volume], coordinator={"template": own}), "volumes"),
    ):
        assert (answer.status, answer.message.startswith(DENIED)) == (403, True), answer
        assert wanted in answer.message


def test_long_names_are_a_warning(hooks: DiWebhooks):
    template: Any = {"template": {"spec": {"containers": [{"name": "di-container", "image": "none"}]}}}
    for length, sections, count in (
        (51, (), 0),
        (47, ("collector",), 0),
        (48, ("collector",), 1),
        (45, ("learner",), 0),
        (46, ("learner",), 1),
        (51, ("collector", "learner"), 2),
    ):
        answer = hooks.try_dijob("All", "a" * length, **dict.fromkeys(sections, template))
        assert (answer.status, len(answer.warnings)) == (201, count), (length, sections, answer.warnings)


@pytest.mark.slow
def test_a_mounted_certificate_is_served_and_read_again(
    control_plane: ControlPlane, quiet_world: World, make_operator: MakeOperator, tmp_path: Path
):
    """As cert-manager mounts it, and writes its CA into the configurations."""
    mounted = DiWebhooks(quiet_world)
    authority = Authority(tmp_path)
    authority.issue("tls", mounted.host, hosts=[mounted.host])
    process = make_operator(
        control_plane.kubeconfig,
        f"--webhook-cert-dir={tmp_path}",
        environment=mounted.environment,
        program=PROGRAM,
    )
    process.start()
    mounted.install(process.webhook_port, "Fail")
    trusted = (tmp_path / "ca.crt").read_bytes()
    for path, configuration in mounted.configurations().items():
        place = "/webhooks/0/clientConfig/caBundle"
        patch = [{"op": "add", "path": place, "value": base64.b64encode(trusted).decode()}]
        assert configuration["webhooks"]
        quiet_world.ask("PATCH", path, patch, JSON_PATCH)
    mounted.wait_called()
    assert mounted.try_dijob("").status == 201
    first = served_certificate(process, trusted, mounted.host)
    authority.issue("tls", mounted.host, hosts=[mounted.host])
    assert wait_until(lambda: served_certificate(process, trusted, mounted.host) != first, PATIENCE), process.text()
    assert mounted.secret() == {}, "no certificate is made where one is mounted"
    mounted.remove()


def test_with_exactly_the_rights_of_the_overlay(
    control_plane: ControlPlane, quiet_world: World, make_operator: MakeOperator, tmp_path: Path, kubectl: str
):
    home = quiet_world.namespace
    roles = rights_of(combine(kubectl, tmp_path / "overlay", "di-system", namespace=home), "di-webhook")
    for document in roles:
        apply(control_plane.api, document)
    pod = PodStandIn(control_plane, tmp_path / "serviceaccount", make_operator, account="di-webhook", program=PROGRAM)
    installed = DiWebhooks(quiet_world)
    process = pod.start(home, unmounted(tmp_path))
    installed.install(process.webhook_port, "Fail")
    installed.wait_injected()
    installed.wait_called()
    installed.delete_secret()
    installed.wait_injected()
    installed.empty_secret()
    installed.wait_injected()
    installed.remove()
    used = requested(control_plane, home, "di-webhook")
    # this API server streams the initial state; one without watch-list is asked for lists
    used |= {right._replace(verb="list") for right in used if right.verb == "watch"}
    assert granted(roles) - used == set(), "granted and never used"
    assert requested(control_plane, home, "di-webhook", "forbid") == set()
    assert process.resident_mib() < 75


def test_training_operator_serves_them_with_the_rights_of_the_component(
    control_plane: ControlPlane,
    quiet_world: World,
    alone: None,
    make_operator: MakeOperator,
    tmp_path: Path,
    kubectl: str,
):
    home = quiet_world.namespace
    documents = combine(kubectl, tmp_path / "overlay", "standalone", ["dijob"], namespace=home)
    for document in documents:
        if document["kind"] in RBAC_KINDS:
            apply(control_plane.api, document)
    beside = WebhooksBeside(quiet_world)
    pod = PodStandIn(control_plane, tmp_path / "serviceaccount", make_operator)
    operator = pod.start(home, *flags_of(deployment_of(documents)))
    beside.install(operator.webhook_port)
    beside.wait_injected()
    beside.wait_called()
    assert beside.try_dijob("hello").message == f"{DENIED}Invalid CleanPodPolicy hello, {POLICIES}"
    assert beside.try_dijob("ALL").body["spec"]["cleanPodPolicy"] == "All"
    beside.remove()
    forbidden = requested(control_plane, home, "training-operator", "forbid")
    assert not {right.resource for right in forbidden if right.group == "admissionregistration.k8s.io"}


def test_finalizers_of_a_stored_invalid_job_can_be_removed(hooks: DiWebhooks):
    hooks.remove()  # while it was stored, there was no webhook
    path = DIJOBS.format(namespace=hooks.world.namespace)
    try:
        body = dijob("hello", "invalid")
        body["metadata"] |= {"finalizers": ["example.com/wait"]}
        hooks.world.wait(lambda: hooks.world.try_to("POST", path, body).status == 201, "a creation without webhooks")
    finally:
        hooks.install(hooks.port, "Fail")
        hooks.wait_injected()
        hooks.wait_called()
    answer = hooks.send("PATCH", f"{DIJOBS}/invalid", {"metadata": {"finalizers": None}}, MERGE)
    assert answer.status == 200, answer
