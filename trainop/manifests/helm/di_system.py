"""The chart for DIJobs alone, in `manifests/chart-di-system`: the objects of the overlay `di-system`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from trainop.kinds.dijob.names import DIJOBS
from trainop.manifests import di
from trainop.manifests.components import objects as component_objects
from trainop.manifests.helm import hooks, monitoring, pod, schemas
from trainop.manifests.helm.chart import Chart, when
from trainop.manifests.helm.chart import placed as place
from trainop.manifests.helm.notes import notes
from trainop.manifests.helm.template import Node
from trainop.manifests.helm.values import Section, Value
from trainop.manifests.names import IMAGE
from trainop.programs.di_operator import LEASE
from trainop.programs.di_webhook import SECRET, SERVICE
from trainop.programs.schemes import crds
from trainop.runtime import Json

NAME = "di-system"
FOLDER = "chart-di-system"
_PROGRAMS: dict[str, tuple[str, Callable[[], Json]]] = {
    "operator": (di.OPERATOR, di.operator_deployment),
    "server": (di.SERVER, di.server_deployment),
    "webhook": (di.WEBHOOK, di.webhook_deployment),
}
"""Section of the values -> name of the program, and its Deployment."""
_placed = partial(place, NAME)


def di_system() -> Chart:
    return Chart(
        folder=FOLDER,
        name=NAME,
        description="di-operator, di-server and di-webhook for DIJobs, in place of DI-orchestrator",
        values=_values(),
        templates=_templates(),
        refusals={},
        notes=_NOTES,
        crds=[each for each in crds() if each["spec"]["group"] == DIJOBS.group],
    )


def _values() -> list[Value | Section]:
    programs: list[Value | Section] = []
    for section, (name, deployment) in _PROGRAMS.items():
        about = f"{name}. Values that hold for all can be replaced here."
        programs += [pod.section(section, about, deployment()), pod.replicas_value(section), pod.flags_value(section)]
        programs += pod.own_values(deployment(), section)
    return [
        *pod.image_values(IMAGE),
        Value("namespaceOverride", "", schemas.STRING, "Instead of the namespace of the release."),
        *hooks.values("Fail", "Fail: without di-webhook no DIJob is created or changed."),
        *pod.common_values([deployment() for _, deployment in _PROGRAMS.values()]),
        *programs,
        *pod.component_values(_SWITCHES),
        monitoring.NAMESPACE,
        *monitoring.values(NAME, "podMonitor", component_objects()["di-monitor"]),
        *monitoring.values(NAME, "prometheusRule", component_objects()["prometheus-rule"]),
    ]


_SWITCHES = {
    "nodePort": f"Port {di.NODE_PORT} of every node leads to di-server, as DI-orchestrator always does.",
    "networkPolicy": "Only coordinators and aggregators reach di-server, and only Prometheus the metrics.",
    "podMonitor": "For the Prometheus operator.",
    "prometheusRule": "Alerts, for the Prometheus operator.",
}


def _templates() -> dict[str, Sequence[Node]]:
    accounts = [
        pod.annotated(account, section) for section, (name, _) in _PROGRAMS.items() for account in di.accounts(name)
    ]
    deployments = [
        pod.replicated(pod.flagged(pod.configured(deployment(), section), section), section)
        for section, (_, deployment) in _PROGRAMS.items()
    ]
    components = di.di_components()
    policies = map(monitoring.admitting, _placed(di.network_policies()))
    return {
        "serviceaccounts": _placed(accounts),
        "rbac": _placed([*di.operator_roles(), *di.server_roles(), *di.webhook_roles()]),
        "deployments": _placed(deployments),
        "services": _placed([di.metrics_service(), di.server_service(), di.webhook_service()]),
        "webhooks": hooks.configured(NAME, di.di_webhook_configurations(SERVICE, "Fail"), di.WEBHOOK),
        "certificate": hooks.certificate(NAME, di.WEBHOOK, SERVICE, SECRET),
        "node-port": [when("$.Values.components.nodePort", _placed(components["di-server-nodeport"].objects))],
        "pod-monitor": monitoring.selected(NAME, "podMonitor", component_objects()["di-monitor"]),
        "prometheus-rule": monitoring.selected(NAME, "prometheusRule", component_objects()["prometheus-rule"]),
        "network-policy": [when("$.Values.components.networkPolicy", list(policies))],
    }


_NOTES = notes(
    f"""\
di-operator, di-server and di-webhook {{{{ $.Chart.AppVersion }}}} are installed in the namespace {{{{ $namespace }}}}.
They work on DIJobs in all namespaces. Within the cluster, di-server answers at
http://{di.SERVER}.{{{{ $namespace }}}}:{di.SERVER_PORT}.

""",
    [name for name, _ in _PROGRAMS.values()],
    "dijobs",
    left={f"lease/{LEASE}": "true", f"secret/{SECRET}": f"not {hooks.CERT_MANAGER}"},
)
