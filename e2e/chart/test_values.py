"""Every value of every chart reaches its place: one row for each value, and for each Deployment of what all have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from e2e.chart.release import CHARTS, Objects, Row, merged, nested, render
from trainop import __version__
from trainop.manifests.helm.charts import charts
from trainop.manifests.helm.values import leaves

OURS, MPI, DI = CHARTS
POD = "spec.template.spec"
CONTAINER = f"{POD}.containers.0"
PROBE = {"httpGet": {"path": "/x", "port": 1}, "periodSeconds": 7}
MOUNT = {"name": "extra", "mountPath": "/extra"}
VOLUME = {"name": "extra", "emptyDir": {}}
SPREAD = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
AFFINITY = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3}]}}
ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


class Pod(NamedTuple):
    """A value that every Deployment has: what is given, where it is found, and what else the chart has there."""

    given: Any
    place: str
    own: bool = False


PODS = {
    "resources": Pod({"limits": {"cpu": "2"}}, f"{CONTAINER}.resources", own=True),
    "livenessProbe": Pod(PROBE, f"{CONTAINER}.livenessProbe", own=True),
    "readinessProbe": Pod(PROBE, f"{CONTAINER}.readinessProbe", own=True),
    "env": Pod([{"name": "HTTPS_PROXY", "value": "http://p"}], f"{CONTAINER}.env", own=True),
    "volumes": Pod([VOLUME], f"{POD}.volumes", own=True),
    "volumeMounts": Pod([MOUNT], f"{CONTAINER}.volumeMounts", own=True),
    "podAnnotations": Pod({"mine": "yes"}, "spec.template.metadata.annotations", own=True),
    "imagePullSecrets": Pod([{"name": "key"}], f"{POD}.imagePullSecrets"),
    "nodeSelector": Pod({"pool": "system"}, f"{POD}.nodeSelector"),
    "tolerations": Pod([{"key": "k", "operator": "Exists"}], f"{POD}.tolerations"),
    "affinity": Pod(AFFINITY, f"{POD}.affinity"),
    "topologySpreadConstraints": Pod([SPREAD], f"{POD}.topologySpreadConstraints"),
    "priorityClassName": Pod("system-cluster-critical", f"{POD}.priorityClassName"),
    "strategy": Pod(ROLLING, "spec.strategy"),
    "terminationGracePeriodSeconds": Pod(0, f"{POD}.terminationGracePeriodSeconds"),
    "podSecurityContext": Pod({"runAsUser": 7}, f"{POD}.securityContext"),
    "securityContext": Pod({"runAsUser": 8}, f"{CONTAINER}.securityContext"),
    "podLabels": Pod({"team": "a"}, "spec.template.metadata.labels"),
}
Expected = Mapping[tuple[str, str], Mapping[str, Any]]
"""Kind and name of an object -> path in it -> what is there; None is nothing. An empty mapping: the object exists."""


def monitored(monitors: list[str]) -> dict[str, tuple[Any, Expected]]:
    """The values of the monitors of pods and of the alerts."""
    rule = "PrometheusRule", "training-operator"
    pods = [("PodMonitor", name) for name in monitors]
    both = {"components": {"podMonitor": True, "prometheusRule": True}}
    release = {"labels": {"release": "p"}}
    return {
        "components.podMonitor": switched("podMonitor", *pods),
        "components.prometheusRule": switched("prometheusRule", rule),
        "podMonitor.labels": ({**both, "podMonitor": release}, {key: {"metadata.labels.release": "p"} for key in pods}),
        "podMonitor.interval": (
            {**both, "podMonitor": {"interval": "5s"}},
            {key: {"spec.podMetricsEndpoints.0.interval": "5s"} for key in pods},
        ),
        "prometheusRule.labels": ({**both, "prometheusRule": release}, {rule: {"metadata.labels.release": "p"}}),
    }


def image(**given: str) -> Any:
    return {"image": given}


def operator(**expected: Any) -> Expected:
    return {("Deployment", "training-operator"): expected}


CERTIFICATE = {
    "spec.secretName": "training-operator-webhook-cert",
    "spec.dnsNames": ["training-operator.kubeflow.svc"],
    "spec.issuerRef": {"kind": "Issuer", "name": "training-operator-webhook"},
}
VALIDATOR = "ValidatingWebhookConfiguration", "validator.training-operator.kubeflow.org"
INJECT = "metadata.annotations.cert-manager~io/inject-ca-from"
COMMAND = f"{CONTAINER}.command.-1"
FLAG = {"args": ["--zap-log-level=debug"]}
LAST = "--zap-log-level=debug"
MANAGED = {"certManager": {"enabled": True}}
ISSUER = {"kind": "ClusterIssuer", "name": "ours"}


def switched(name: str, *found: tuple[str, str]) -> tuple[Any, Expected]:
    return {"components": {name: True}}, {key: {} for key in found}


OF_EACH: dict[str, dict[str, tuple[Any, Expected]]] = {
    OURS.folder: {
        "image.repository": (image(repository="mine/x"), operator(**{f"{CONTAINER}.image": f"mine/x:{__version__}"})),
        "image.tag": (image(tag="9"), operator(**{f"{CONTAINER}.image": "trainop:9"})),
        "image.pullPolicy": (image(pullPolicy="Always"), operator(**{f"{CONTAINER}.imagePullPolicy": "Always"})),
        "namespaceOverride": ({"namespaceOverride": "x"}, operator(**{"metadata.namespace": "x"})),
        "replicas": (
            {"replicas": 3},
            {
                **operator(
                    **{"spec.replicas": 3, COMMAND: "--leader-elect", f"{POD}.topologySpreadConstraints.1.maxSkew": 1}
                ),
                ("PodDisruptionBudget", "training-operator"): {},
            },
        ),
        "leaderElection": ({"leaderElection": False}, operator(**{COMMAND: "--zap-devel=false"})),
        "namespaced": ({"namespaced": True}, operator(**{f"{CONTAINER}.command.3": "--namespace=$(MY_POD_NAMESPACE)"})),
        "namespaces": ({"namespaces": ["a", "b"]}, operator(**{f"{CONTAINER}.command.3": "--namespace=a,b"})),
        "schemes": (
            {"schemes": ["TFJob", "jaxjob"]},
            operator(
                **{
                    f"{CONTAINER}.command.3": "--enable-scheme=TFJob",
                    f"{CONTAINER}.command.4": "--enable-scheme=jaxjob",
                }
            ),
        ),
        "gangSchedulerName": ({"gangSchedulerName": "volcano"}, operator(**{COMMAND: "--gang-scheduler-name=volcano"})),
        "serviceMode": ({"serviceMode": "job"}, operator(**{COMMAND: "--service-mode=job"})),
        "args": (FLAG, operator(**{COMMAND: LAST})),
        "webhooks.enabled": ({"webhooks": {"enabled": False}}, operator(**{COMMAND: "--webhook-server-port=0"})),
        "webhooks.failurePolicy": (
            {"webhooks": {"failurePolicy": "Fail"}},
            {VALIDATOR: {"webhooks.0.failurePolicy": "Fail", "webhooks.-1.failurePolicy": "Fail"}},
        ),
        "certManager.enabled": (
            MANAGED,
            {
                VALIDATOR: {INJECT: "kubeflow/training-operator-webhook"},
                ("Certificate", "training-operator-webhook"): CERTIFICATE,
                ("Issuer", "training-operator-webhook"): {"spec": {"selfSigned": {}}},
            },
        ),
        "certManager.issuerRef": (
            merged(MANAGED, {"certManager": {"issuerRef": ISSUER}}),
            {("Certificate", "training-operator-webhook"): {"spec.issuerRef": ISSUER}},
        ),
        "serviceAccountAnnotations": (
            {"serviceAccountAnnotations": {"role": "x"}},
            {("ServiceAccount", "training-operator"): {"metadata.annotations": {"role": "x"}}},
        ),
        "components.mpiSsh": switched("mpiSsh", ("ClusterRole", "training-operator-mpi-ssh")),
        "components.mpiExec": switched("mpiExec", ("ClusterRole", "training-operator-mpi-exec")),
        "components.evictionResponder": switched(
            "evictionResponder", ("ClusterRole", "training-operator-eviction-responder")
        ),
        "components.kueue": switched("kueue", ("ClusterRole", "training-operator-kueue")),
        "components.trainJobs": switched("trainJobs", ("ClusterRole", "training-operator-train-jobs")),
        "components.userRoles": switched("userRoles", ("ClusterRole", "training-operator-edit")),
        "components.networkPolicy": switched("networkPolicy", ("NetworkPolicy", "training-operator")),
        "components.serviceMonitor": switched("serviceMonitor", ("ServiceMonitor", "training-operator")),
        "components.progress": (
            {"components": {"progress": True}},
            {
                **operator(**{COMMAND: "--progress-bind-address=:9444"}),
                ("ClusterRole", "training-operator-progress"): {},
                ("Service", "training-operator"): {"spec.ports.2.name": "progress"},
            },
        ),
        "components.secureMetrics": (
            {"components": {"secureMetrics": True}},
            {
                **operator(**{COMMAND: "--metrics-secure"}),
                ("ClusterRole", "training-operator-secure-metrics"): {},
                ("Service", "training-operator"): {
                    "spec.ports.0.name": "https-metrics",
                    "metadata.annotations": None,
                },
            },
        ),
        "components.prometheusRule": switched("prometheusRule", ("PrometheusRule", "training-operator")),
        "components.grafanaDashboard": switched("grafanaDashboard", ("ConfigMap", "training-operator-dashboard")),
        "components.dijob": switched("dijob", ("Deployment", "di-server"), ("Service", "di-server")),
        "networkPolicy.monitoringNamespace": (
            {"components": {"networkPolicy": True}, "networkPolicy": {"monitoringNamespace": "prom"}},
            {
                ("NetworkPolicy", "training-operator"): {
                    "spec.ingress.0.from.0.namespaceSelector.matchLabels": {"kubernetes.io/metadata.name": "prom"}
                }
            },
        ),
        "serviceMonitor.labels": (
            {"components": {"serviceMonitor": True}, "serviceMonitor": {"labels": {"release": "p"}}},
            {("ServiceMonitor", "training-operator"): {"metadata.labels.release": "p"}},
        ),
        "serviceMonitor.interval": (
            {"components": {"serviceMonitor": True}, "serviceMonitor": {"interval": "5s"}},
            {
                ("ServiceMonitor", "training-operator"): {
                    "spec.endpoints.0.interval": "5s",
                    "spec.endpoints.1.interval": "5s",
                }
            },
        ),
        "serviceMonitor.tlsConfig": (
            {
                "components": {"serviceMonitor": True},
                "serviceMonitor": {"tlsConfig": {"insecureSkipVerify": False, "serverName": "s"}},
            },
            {
                ("ServiceMonitor", "training-operator"): {
                    "spec.endpoints.1.tlsConfig": {"insecureSkipVerify": False, "serverName": "s"}
                }
            },
        ),
        "prometheusRule.labels": (
            {"components": {"prometheusRule": True}, "prometheusRule": {"labels": {"release": "p"}}},
            {("PrometheusRule", "training-operator"): {"metadata.labels.release": "p"}},
        ),
        "grafanaDashboard.labels": (
            {"components": {"grafanaDashboard": True}, "grafanaDashboard": {"labels": {"folder": "ml"}}},
            {("ConfigMap", "training-operator-dashboard"): {"metadata.labels.folder": "ml"}},
        ),
        "diServer.args": (
            {"components": {"dijob": True}, "diServer": FLAG},
            {("Deployment", "di-server"): {f"{CONTAINER}.args.-1": LAST}},
        ),
        "diServer.serviceAccountAnnotations": (
            {"components": {"dijob": True}, "diServer": {"serviceAccountAnnotations": {"role": "x"}}},
            {
                ("ServiceAccount", "di-server"): {"metadata.annotations": {"role": "x"}},
                ("ServiceAccount", "training-operator"): {"metadata.annotations": None},
            },
        ),
    },
    MPI.folder: {
        "image.repository": (
            image(repository="x"),
            {("Deployment", "mpi-operator"): {f"{CONTAINER}.image": f"x:{__version__}"}},
        ),
        "image.tag": (image(tag="9"), {("Deployment", "mpi-operator"): {f"{CONTAINER}.image": "trainop:9"}}),
        "image.pullPolicy": (
            image(pullPolicy="Never"),
            {("Deployment", "mpi-operator"): {f"{CONTAINER}.imagePullPolicy": "Never"}},
        ),
        "namespaceOverride": (
            {"namespaceOverride": "x"},
            {("Deployment", "mpi-operator"): {"metadata.namespace": "x"}},
        ),
        "replicas": ({"replicas": 3}, {("Deployment", "mpi-operator"): {"spec.replicas": 3}}),
        "args": ({"args": ["-v=2"]}, {("Deployment", "mpi-operator"): {f"{CONTAINER}.args.-1": "-v=2"}}),
        "serviceAccountAnnotations": (
            {"serviceAccountAnnotations": {"role": "x"}},
            {("ServiceAccount", "mpi-operator"): {"metadata.annotations": {"role": "x"}}},
        ),
        **monitored(["mpi-operator"]),
        "components.exec": switched("exec", ("ClusterRole", "mpi-operator-exec")),
        "components.userRoles": switched("userRoles", ("ClusterRole", "training-operator-edit")),
    },
    DI.folder: {
        "image.repository": (
            image(repository="x"),
            {("Deployment", name): {f"{CONTAINER}.image": f"x:{__version__}"} for name in DI.deployments.values()},
        ),
        "image.tag": (
            image(tag="9"),
            {("Deployment", name): {f"{CONTAINER}.image": "trainop:9"} for name in DI.deployments.values()},
        ),
        "image.pullPolicy": (
            image(pullPolicy="Never"),
            {("Deployment", name): {f"{CONTAINER}.imagePullPolicy": "Never"} for name in DI.deployments.values()},
        ),
        "namespaceOverride": (
            {"namespaceOverride": "x"},
            {("Deployment", name): {"metadata.namespace": "x"} for name in DI.deployments.values()},
        ),
        "webhooks.failurePolicy": (
            {"webhooks": {"failurePolicy": "Ignore"}},
            {
                ("ValidatingWebhookConfiguration", "di-validating-webhook-configuration"): {
                    "webhooks.0.failurePolicy": "Ignore"
                },
                ("MutatingWebhookConfiguration", "di-mutating-webhook-configuration"): {
                    "webhooks.0.failurePolicy": "Ignore"
                },
            },
        ),
        "certManager.enabled": (
            MANAGED,
            {
                ("ValidatingWebhookConfiguration", "di-validating-webhook-configuration"): {
                    INJECT: "di-system/di-webhook"
                },
                ("MutatingWebhookConfiguration", "di-mutating-webhook-configuration"): {INJECT: "di-system/di-webhook"},
                ("Certificate", "di-webhook"): {
                    "spec.secretName": "di-webhook-server-cert",
                    "spec.dnsNames": ["di-webhook-service.di-system.svc"],
                },
            },
        ),
        "certManager.issuerRef": (
            merged(MANAGED, {"certManager": {"issuerRef": ISSUER}}),
            {("Certificate", "di-webhook"): {"spec.issuerRef": ISSUER}},
        ),
        "serviceAccountAnnotations": (
            {"serviceAccountAnnotations": {"role": "x"}},
            {("ServiceAccount", name): {"metadata.annotations": {"role": "x"}} for name in DI.deployments.values()},
        ),
        **monitored(["di-operator", "di-server", "di-webhook"]),
        "components.nodePort": switched("nodePort", ("Service", "di-server-nodeport")),
        "components.networkPolicy": switched("networkPolicy", ("NetworkPolicy", "di-server")),
        "networkPolicy.monitoringNamespace": (
            {"components": {"networkPolicy": True}, "networkPolicy": {"monitoringNamespace": "prom"}},
            {
                ("NetworkPolicy", name): {
                    f"spec.ingress.0.from.{index}.namespaceSelector.matchLabels": {
                        "kubernetes.io/metadata.name": "prom"
                    }
                }
                for name, index in (("di-operator", 0), ("di-server", 1), ("di-webhook", 0))
            },
        ),
        **{
            f"{section}.{value}": ({section: given}, {(kind, name): expected})
            for section, name in DI.deployments.items()
            for value, given, kind, expected in (
                ("args", FLAG, "Deployment", {f"{CONTAINER}.args.-1": LAST}),
                ("replicas", {"replicas": 3}, "Deployment", {"spec.replicas": 3}),
                (
                    "serviceAccountAnnotations",
                    {"serviceAccountAnnotations": {"role": "x"}},
                    "ServiceAccount",
                    {"metadata.annotations": {"role": "x"}},
                ),
            )
        },
    },
}


def at(item: Any, path: str) -> Any:
    """What is at the path; None if there is nothing. `~` in a name stands for a dot."""
    for step in (part.replace("~", ".") for part in path.split(".")):
        if item is None:
            return None
        if isinstance(item, list):
            item = item[int(step)] if -len(item) <= int(step) < len(item) else None
        else:
            item = item.get(step)
    return item


def by_kind_and_name(objects: Objects) -> dict[tuple[str, str], Any]:
    return {(kind, name): item for (kind, _, name), item in objects.items()}


def pod_values(chart: Row) -> set[str]:
    """The values of Deployments: in each section all, and at the top also those that hold for all Deployments."""
    of_sections = {f"{section}.{name}".lstrip(".") for section in chart.deployments for name in PODS}
    return of_sections | {name for name, value in PODS.items() if not value.own}


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.folder)
def test_every_value_has_a_row(chart: Row) -> None:
    (made,) = (each for each in charts() if each.folder == chart.folder)
    assert {*OF_EACH[chart.folder], *pod_values(chart)} == set(leaves(made.values))


CASES = [pytest.param(chart, path, id=f"{chart.folder}-{path}") for chart in CHARTS for path in OF_EACH[chart.folder]]


@pytest.mark.parametrize(("chart", "path"), CASES)
def test_a_value_reaches_its_object(chart: Row, path: str, tmp_path: Path) -> None:
    """And what is expected is not so without the value."""
    values, expected = OF_EACH[chart.folder][path]
    assert at(values, path) is not None
    others = without(values, path)
    before, after = (by_kind_and_name(render(chart, each, tmp_path)) for each in (others, values))
    for key, places in expected.items():
        assert key in after, key
        for place, wanted in places.items():
            assert at(after[key], place) == wanted, (key, place)
    assert any(
        key not in before or any(at(before[key], place) != wanted for place, wanted in places.items())
        for key, places in expected.items()
    ), "the value changes nothing"


def without(values: Any, path: str) -> Any:
    name, _, rest = path.partition(".")
    kept = {each: value for each, value in values.items() if each != name}
    return {**kept, name: without(values[name], rest)} if rest else kept


SECTIONS = [
    pytest.param(chart, section, id=f"{chart.folder}-{section}")
    for chart in CHARTS
    for section in dict.fromkeys(("", *chart.deployments))
]


@pytest.mark.parametrize(("chart", "section"), SECTIONS)
def test_the_values_of_deployments_reach_those_they_are_for(chart: Row, section: str, tmp_path: Path) -> None:
    """All values of one section, and at the top of the chart. No other Deployment changes."""
    named = chart.deployments.get(section)
    given = {name: value for name, value in PODS.items() if named or not value.own}
    tree: Any = {name: value.given for name, value in given.items()}
    everything = {"components": {"dijob": True}} if chart == OURS else {}
    before = by_kind_and_name(render(chart, everything, tmp_path))
    after = by_kind_and_name(render(chart, merged(everything, nested(section, tree) if section else tree), tmp_path))
    for deployment in chart.deployments.values():
        was, found = before["Deployment", deployment], after["Deployment", deployment]
        for name, value in given.items():
            reached = deployment == named or not (section or value.own)
            assert includes(at(found, value.place), value.given) is reached, (deployment, name)
            assert not includes(at(was, value.place), value.given), (deployment, name)
            if not reached:
                assert at(found, value.place) == at(was, value.place)


def includes(found: Any, given: Any) -> bool:
    """Whether `found` is what was given; of lists and mappings, whether it has that beside what the chart sets."""
    if isinstance(given, dict):
        return isinstance(found, dict) and all(includes(found.get(name), value) for name, value in given.items())
    if isinstance(given, list):
        return isinstance(found, list) and all(item in found for item in given)
    return bool(found == given)
