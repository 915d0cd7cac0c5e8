"""Overlays and components: each pair is in the table of manifests/README.md, and kustomize agrees with it."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kustomize import MANIFESTS, OVERLAYS, PAIRS, combine, fitting, needed_for, write
from trainop.controllers.admission import webhooks_of
from trainop.manifests.pairs import CRDS, INCLUDED, NO, YES
from trainop.manifests.tree import tree
from trainop.programs.schemes import all_kinds

PATCH_NOTHING = {"components/grafana-dashboard", "components/prometheus-rule", "components/user-roles"}
"""kustomize accepts them anywhere."""
REFUSALS = ("no matches for Id", "already registered id", "ID conflict")


def is_built(kubectl: str, folder: Path, overlay: str, *components: str) -> bool:
    write(folder, overlay, components)
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, check=False, text=True)
    assert done.returncode == 0 or any(text in done.stderr for text in REFUSALS), done.stderr
    return done.returncode == 0


def test_the_table_has_every_component_and_every_overlay():
    components = {path.parent.relative_to(MANIFESTS).as_posix() for path in MANIFESTS.rglob("kustomization.yaml")}
    assert set(PAIRS) == {each for each in components if each.startswith("components/") or each.count("/") == 2}
    assert {overlay for fits in PAIRS.values() for overlay in fits} == {CRDS, *OVERLAYS}
    assert all(set(fits.values()) - {NO} for fits in PAIRS.values()), "a component that fits nothing"


@pytest.mark.parametrize("overlay", [CRDS, *OVERLAYS])
def test_kustomize_accepts_what_the_table_says_and_nothing_else(kubectl: str, tmp_path: Path, overlay: str):
    for number, (component, fits) in enumerate(PAIRS.items()):
        fit = fits[overlay]
        alone = is_built(kubectl, tmp_path / f"{number}", overlay, component)
        if component not in PATCH_NOTHING:
            assert alone == (fit == YES), (overlay, component)
        if fit not in {NO, INCLUDED, YES}:
            assert is_built(kubectl, tmp_path / f"{number}-with", overlay, *needed_for(overlay, component))


def by_name(found: list[Any]) -> dict[tuple[str, str], Any]:
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def flags_last(found: list[Any]) -> str:
    """The objects with the flags of commands sorted, whose order does not matter."""
    for each in found:
        if each["kind"] == "Deployment":
            (container,) = each["spec"]["template"]["spec"]["containers"]
            container["command"] = [container["command"][0], *sorted(container["command"][1:])]
    return json.dumps(sorted(found, key=json.dumps))


def test_two_components_that_change_objects_are_added_in_any_order(kubectl: str, tmp_path: Path):
    """`required-webhooks` before `dijob` once left the webhooks of DIJobs at Ignore."""
    overlay, changing = "standalone", []
    for name in fitting(overlay):
        (kustomization,) = tree()[f"{name}/kustomization.yaml"]
        if "replacements" in kustomization or any("target" in each for each in kustomization.get("patches", ())):
            changing.append(name)
    assert len(changing) > 2
    for first, second in itertools.combinations(changing, 2):
        folder = tmp_path / f"{first}+{second}".replace("/", "-")
        if PAIRS[second][overlay] == YES:
            built = [
                combine(kubectl, folder / order[0], overlay, order) for order in ((first, second), (second, first))
            ]
            assert flags_last(built[0]) == flags_last(built[1]), (first, second)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_component_changes_something_and_what_it_adds_selects_something(
    kubectl: str, tmp_path: Path, overlay: str
):
    for number, name in enumerate(fitting(overlay)):
        *before, _ = chosen = needed_for(overlay, name)
        without = by_name(combine(kubectl, tmp_path / f"{number}-without", overlay, before))
        with_it = by_name(combine(kubectl, tmp_path / f"{number}-with", overlay, chosen))
        assert without != with_it, name
        for key, each in with_it.items():
            assert selects(each, with_it), (name, key)


def selects(found: Any, objects: dict[tuple[str, str], Any]) -> bool:
    """Whether the selector of the object, if it has one, selects a pod or a Service of the installation."""
    pods = [each["spec"]["template"] for each in objects.values() if each["kind"] == "Deployment"]
    spec = found.get("spec", {})
    match found["kind"]:
        case "NetworkPolicy":
            return any(covers(pod, spec["podSelector"]["matchLabels"]) for pod in pods)
        case "PodDisruptionBudget" | "Deployment":
            return any(covers(pod, spec["selector"]["matchLabels"]) for pod in pods)
        case "Service":
            chosen = [pod for pod in pods if covers(pod, spec["selector"])]
            ports = {port["containerPort"] for pod in chosen for port in pod["spec"]["containers"][0]["ports"]}
            return bool(chosen) and {port["targetPort"] for port in spec["ports"]} <= ports
        case "PodMonitor":
            chosen = [pod for pod in pods if covers(pod, spec["selector"]["matchLabels"])]
            names = {port.get("name") for pod in chosen for port in pod["spec"]["containers"][0]["ports"]}
            return bool(chosen) and {each["port"] for each in spec["podMetricsEndpoints"]} <= names
        case "ServiceMonitor":
            services = [each for each in objects.values() if each["kind"] == "Service"]
            chosen = [each for each in services if covers(each, spec["selector"]["matchLabels"])]
            names = {port.get("name") for each in chosen for port in each["spec"]["ports"]}
            scraped = [each for each in spec["endpoints"] if each["port"] in names]
            return [each.get("scheme", "http") for each in scraped] == [scheme_of_metrics(pods)]
    return True


def scheme_of_metrics(pods: list[Any]) -> str:
    flags = [flag for pod in pods for flag in pod["spec"]["containers"][0]["command"]]
    return "https" if "--metrics-secure" in flags else "http"


SECURE = "components/secure-metrics"


@pytest.mark.parametrize("overlay", [each for each in OVERLAYS if PAIRS[SECURE][each] == YES])
@pytest.mark.parametrize("order", [(SECURE, "service-monitor"), ("service-monitor", SECURE)], ids=["before", "after"])
def test_a_service_monitor_scrapes_metrics_over_tls_with_a_token(
    kubectl: str, tmp_path: Path, overlay: str, order: tuple[str, str]
):
    """In any order, and nobody else is told to scrape without TLS."""
    built = by_name(combine(kubectl, tmp_path, overlay, order))
    monitor, service = built["ServiceMonitor", "training-operator"], built["Service", "training-operator"]
    assert selects(monitor, built)
    ports = {port["name"] for port in service["spec"]["ports"]}
    (endpoint,) = (each for each in monitor["spec"]["endpoints"] if each["port"] in ports)
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert (endpoint["scheme"], endpoint["bearerTokenFile"]) == ("https", token)
    assert not [name for name in service["metadata"].get("annotations", {}) if name.startswith("prometheus.io/")]
    others = [each for each in monitor["spec"]["endpoints"] if each is not endpoint]
    assert not any("bearerTokenFile" in each for each in others), "the token never goes to a port without TLS"


def test_every_program_with_secure_metrics_has_the_component(kubectl: str, tmp_path: Path):
    """Of the programs that the overlays start, those whose flags include it."""
    pages = Path(__file__).parent.parent / "docs" / "flags"
    have = {page.stem for page in pages.glob("*.md") if "`--metrics-secure`" in page.read_text(encoding="utf-8")}
    assert have == {"operator"}, "another program needs a component of its own"
    fits = {each for each in OVERLAYS if PAIRS[SECURE][each] == YES}
    for overlay in OVERLAYS:
        built = combine(kubectl, tmp_path / overlay, overlay)
        everywhere = ("ClusterRole", "training-operator") in by_name(built)
        assert (overlay in fits) == everywhere, overlay


def covers(labelled: Any, selector: dict[str, str]) -> bool:
    return bool(selector.items() <= labelled["metadata"].get("labels", {}).items())


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("component", ["components/required-webhooks"])
def test_required_webhooks_leaves_none_at_ignore(kubectl: str, tmp_path: Path, overlay: str, component: str):
    """Whatever else is installed, but for those that only warn."""
    refusing = {each.path for each in webhooks_of(all_kinds()) if each.refuses}
    chosen = fitting(overlay)
    if PAIRS[component][overlay] != YES:
        return
    for number, order in enumerate((chosen, [component, *(each for each in chosen if each != component)])):
        built = combine(kubectl, tmp_path / str(number), overlay, order)
        policies = {
            hook["failurePolicy"]
            for each in built
            for hook in each.get("webhooks", ())
            if hook["clientConfig"]["service"]["path"] in refusing
        }
        assert policies == {"Fail"}


def test_the_namespaced_overlay_has_no_object_of_the_cluster(kubectl: str, tmp_path: Path):
    """With any component: an owner of one namespace can apply it, if the rights to grant are there."""
    built = combine(kubectl, tmp_path, "namespaced", fitting("namespaced"))
    assert {each["metadata"].get("namespace") for each in built} == {"kubeflow"}
    assert not {each["kind"] for each in built} & {"Namespace", "ClusterRole", "ClusterRoleBinding"}
