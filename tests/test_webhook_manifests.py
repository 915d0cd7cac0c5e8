"""Every webhook configuration that is installed calls the operator for the same requests, and waits for it as long."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainop.controllers.admission import webhooks_of
from trainop.manifests.di import di_webhook_configurations
from trainop.manifests.tree import files, stream
from trainop.manifests.webhook import MATCH_CONDITIONS, TIMEOUT, webhook_configurations
from trainop.programs.schemes import all_kinds, crds
from trainop.runtime.webhook.admission import AdmissionRequest, AdmissionResponse

MANIFESTS = Path(__file__).parent.parent / "manifests"


def configurations() -> dict[str, Any]:
    """Where it is shipped -> the configuration, from all files, from the chart and from `trainop manifests --print`."""
    found: dict[str, Any] = {}
    for path, text in files().items():
        if path.endswith(".yaml") and not path.startswith("chart"):
            found |= {f"{path} {each['metadata']['name']}": each for each in _with_webhooks(text)}
    for template in MANIFESTS.glob("chart*/templates/*.yaml"):
        # What a template writes conditionally stands between lines that begin with braces.
        text = re.sub(r"^\s*\{\{.*\}\}$", "", template.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for part in text.split("\n---\n"):
            if re.search(r"^kind: (Validating|Mutating)WebhookConfiguration$", part, re.MULTILINE):
                (each,) = _with_webhooks(re.sub(r"\{\{.*?\}\}", "value", part))
                found[f"{template.relative_to(MANIFESTS)} {each['metadata']['name']}"] = each
    printed = (each for each in stream("elsewhere", "none") if "webhooks" in each)
    return found | {f"printed {each['metadata']['name']}": each for each in printed}


def paths_of_templates(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The pod templates of a schema, as paths of fields; `Worker` stands for the key of a map."""
    members = dict(schema.get("properties", {}))
    if "additionalProperties" in schema:
        members["Worker"] = schema["additionalProperties"]
    for name, member in members.items():
        if name == "template":
            yield (*path, name)
        else:
            yield from paths_of_templates(member, (*path, name))


def templates() -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Resource and path -> an object of each version of each CRD that has pod templates, and where a template is."""
    found = {}
    for definition in crds():
        spec = definition["spec"]
        for version in spec["versions"]:
            api = f"{spec['group']}/{version['name']}"
            for path in paths_of_templates(version["schema"]["openAPIV3Schema"]):
                about = {"apiVersion": api, "kind": spec["names"]["kind"], "metadata": {"name": "a", "namespace": "n"}}
                found[f"{api} {spec['names']['plural']} {'.'.join(path)}"] = (about, path)
    return found


TEMPLATES = templates()


def _with_webhooks(text: str) -> list[Any]:
    return [each for each in yaml.safe_load_all(text) if each and "webhooks" in each]


CONFIGURATIONS = configurations()


def test_all_places_are_found():
    names = {each["metadata"]["name"] for each in (*webhook_configurations(), *di_webhook_configurations("x", "Fail"))}
    assert {name.rpartition(" ")[2] for name in CONFIGURATIONS} == names
    places = {name.rpartition(" ")[0] for name in CONFIGURATIONS}
    wanted = {"base/webhook.yaml", "components/dijob/dijob.yaml", "overlays/di-system/webhooks.yaml", "printed"}
    charts = {"chart/templates/webhook.yaml", "chart/templates/dijob.yaml", "chart-di-system/templates/webhooks.yaml"}
    assert wanted | charts <= places


@pytest.mark.parametrize("place", CONFIGURATIONS)
def test_a_hung_operator_delays_no_write_for_long_and_what_is_not_judged_is_not_sent(place: str):
    assert CONFIGURATIONS[place]["webhooks"]
    for webhook in CONFIGURATIONS[place]["webhooks"]:
        assert 2 <= webhook["timeoutSeconds"] <= 3
        assert webhook["timeoutSeconds"] == TIMEOUT
        assert webhook["matchConditions"] == list(MATCH_CONDITIONS)
        assert {each["name"] for each in webhook["matchConditions"]} == {"not-being-deleted", "created-or-changed"}


# Pod templates --------------------------------------------------------------------------------------------------------


def test_every_crd_has_pod_templates():
    with_templates = {about["kind"] for about, _ in TEMPLATES.values()}
    assert with_templates == {each["spec"]["names"]["kind"] for each in crds()}


@pytest.mark.parametrize("place", TEMPLATES)
def test_a_misspelt_field_of_any_pod_template_is_answered_with_a_warning(place: str):
    """Of every resource that has one, in every version, by the webhook that the shipped configurations name."""
    about, path = TEMPLATES[place]
    value: Any = {"spec": {"containers": [{"name": "c", "image": "i", "resource": {"limits": {"cpu": 1}}}]}}
    for name in reversed(path):
        value = {name: value}
    group, _, version = about["apiVersion"].partition("/")
    plural = place.split()[1]
    rule = {"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE", "UPDATE"], "resources": [plural]}
    called = {
        webhook["clientConfig"]["service"]["path"]
        for each in CONFIGURATIONS.values()
        for webhook in each["webhooks"]
        if webhook["rules"] == [rule] and each["kind"] == "ValidatingWebhookConfiguration"
    }
    (webhook,) = (each for each in webhooks_of(all_kinds()) if each.path in called)
    response = webhook.handler(AdmissionRequest("u", "CREATE", object=about | value))
    assert isinstance(response, AdmissionResponse)
    field = f"{'.'.join(path)}.spec.containers[0].resource"
    assert f'{field}: unknown field, did you mean "resources"?' in response.warnings


@pytest.mark.parametrize("content", [None, {}, {"spec": None}, {"spec": []}, {"spec": {"aggregator": {"template": 3}}}])
def test_a_webhook_that_only_warns_refuses_nothing(content: Any):
    (webhook,) = (each for each in webhooks_of(all_kinds()) if not each.refuses)
    for operation in ("CREATE", "UPDATE", "DELETE"):
        response = webhook.handler(AdmissionRequest("u", operation, object=content, old_object=content))
        assert isinstance(response, AdmissionResponse)
        assert (response.allowed, response.warnings) == (True, ())
