"""The chart of training-operator, in `manifests/chart`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from trainop.engine.extensions import MODES
from trainop.manifests import availability, progress, rbac, secure_metrics, service_mode, workload
from trainop.manifests.components import objects as component_objects
from trainop.manifests.di import BESIDE, FLAGS_BESIDE, beside
from trainop.manifests.helm import hooks, monitoring, pod, schemas
from trainop.manifests.helm.chart import NAMESPACE_NAME, Chart, when
from trainop.manifests.helm.chart import placed as place
from trainop.manifests.helm.notes import notes
from trainop.manifests.helm.template import Action, Expression, Node, find, put, replace
from trainop.manifests.helm.values import Section, Value
from trainop.manifests.names import IMAGE, NAME, WEBHOOK_SECRET
from trainop.manifests.webhook import webhook_configurations
from trainop.programs.schemes import KINDS, TRAIN_JOBS, crds
from trainop.programs.settings import TRAINING_LEASE
from trainop.runtime import Json

FOLDER = "chart"
*FIRST, LAST = KINDS
DI_SERVER = "diServer"
_SEVERAL = "gt (int $.Values.replicas) 1"
_ELECTS = f"or $.Values.leaderElection ({_SEVERAL})"
_NAMESPACED = "(or $.Values.namespaced $.Values.namespaces)"
_WEBHOOKS = f"and $.Values.webhooks.enabled (not {_NAMESPACED})"
_DIJOB = "$.Values.components.dijob"
_SECURE = "$.Values.components.secureMetrics"
_PROGRESS = "$.Values.components.progress"
_CERTIFICATE = f"{NAME}-webhook"
_COMMAND = ("spec", "template", "spec", "containers", 0, "command")
_PORTS = ("spec", "ports")
_CONTAINER_PORTS = ("spec", "template", "spec", "containers", 0, "ports")
_HERE = Expression("$namespace | quote")
_placed = partial(place, NAME)

_SWITCHES = {
    "mpi-ssh": "The rights for MPIJobs with transport ssh (kubeflow.org/v2beta1).",
    "mpi-exec": "The rights for MPIJobs with transport exec (kubeflow.org/v1).",
    "eviction-responder": "The rights for jobs whose Evictions the operator answers (Kubernetes 1.37, alpha).",
    "kueue": "The rights for jobs that the operator queues with Kueue itself (--kueue). Not with permissions in some "
    "namespaces only.",
    "train-jobs": "The rights for TrainJobs, with the scheme TrainJob. Their CRDs are in manifests/crds-trainjob.",
    "user-roles": "ClusterRoles for jobs, aggregated into the roles admin, edit and view of the cluster.",
    "network-policy": "Admits the scrapes of Prometheus and the API server's calls of webhooks, and nothing else.",
    "service-monitor": "For the Prometheus operator.",
    "secure-metrics": "Metrics over TLS, for callers with a token that may get /metrics. Not with permissions in some "
    "namespaces only.",
    "progress": "The endpoint to which the pods of jobs report their progress. It has the certificate of the webhooks.",
    "prometheus-rule": "Alerts, for the Prometheus operator.",
    "grafana-dashboard": "A ConfigMap for the sidecar of Grafana.",
    BESIDE: "What DIJobs need: di-server, and their webhooks. Not with permissions in some namespaces only.",
}


def training_operator() -> Chart:
    return Chart(
        folder=FOLDER,
        name=NAME,
        description=f"One operator for {', '.join(FIRST)} and {LAST}",
        values=_values(),
        templates=_templates(),
        refusals=_REFUSALS,
        notes=_NOTES,
        crds=crds(),
    )


# values


def _values() -> list[Value | Section]:
    own, server = _base(), _find(beside(), "Deployment")
    return [
        *pod.image_values(IMAGE),
        Value("namespaceOverride", "", schemas.STRING, "Instead of the namespace of the release."),
        Value("replicas", 1, schemas.COUNT, _REPLICAS),
        Value(
            "leaderElection",
            default=True,
            schema=schemas.BOOLEAN,
            comment="With one replica too: a rolling update runs the old and the new pod side by side.",
        ),
        Value(
            "namespaced",
            default=False,
            schema=schemas.BOOLEAN,
            comment="Permissions only in the operator's namespace, and no webhooks.",
        ),
        Value("namespaces", [], schemas.STRINGS, "Permissions only in these namespaces, and no webhooks."),
        Value("schemes", [], _KINDS, "Kinds, such as PyTorchJob; none: all."),
        Value("gangSchedulerName", "", schemas.STRING, "volcano, or the name of a scheduler with coscheduling."),
        Value("serviceMode", "", schemas.one_of("", *MODES), f"{service_mode.ADVICE} Empty: replica."),
        pod.flags_value(),
        Value("webhooks.enabled", default=True, schema=schemas.BOOLEAN),
        *hooks.values("Ignore", "Fail: without the operator no job is created or changed."),
        *pod.own_values(own),
        *pod.common_values([own, server]),
        *pod.component_values({_camel(name): text for name, text in _SWITCHES.items()}),
        *_values_of_components(),
        pod.section(
            DI_SERVER, "di-server, with components.dijob. Values that hold for all can be replaced here.", server
        ),
        *pod.own_values(server, DI_SERVER),
        pod.flags_value(DI_SERVER),
    ]


_REPLICAS = "Several elect a leader, are spread over nodes and zones, and have a PodDisruptionBudget."
_SCHEMES = (*KINDS, TRAIN_JOBS)
_KINDS: Json = {"type": "array", "items": {"enum": [*_SCHEMES, *(kind.lower() for kind in _SCHEMES)]}}


def _values_of_components() -> list[Value]:
    found = component_objects()
    return [
        monitoring.NAMESPACE,
        *(value for name in _SELECTED for value in monitoring.values(NAME, _camel(name), found[name])),
    ]


_SELECTED = ("service-monitor", "prometheus-rule", "grafana-dashboard")
"""Components whose objects others select by labels."""
_REFUSALS = {
    f"and {_NAMESPACED} {_DIJOB}": "components.dijob needs rights in all namespaces: leave namespaced and namespaces "
    "empty, or install the chart of di-system.",
    f"and {_NAMESPACED} {_SECURE}": "components.secureMetrics needs the right to review tokens, which only a "
    "ClusterRole grants: leave namespaced and namespaces empty.",
    f"and {_NAMESPACED} $.Values.components.kueue": "components.kueue needs to read ResourceFlavors, which only a "
    "ClusterRole grants: leave namespaced and namespaces empty.",
    f"and {_PROGRESS} (not ({_WEBHOOKS}))": "components.progress has the certificate of the webhooks, and the "
    "right to review tokens: it needs webhooks.enabled, and rights in all namespaces.",
    f'and (eq $.Values.webhooks.failurePolicy "Fail") (not ({_WEBHOOKS}))': "webhooks.failurePolicy is Fail, but this "
    "release has no webhooks: they need webhooks.enabled, and rights in all namespaces.",
    f"and {hooks.CERT_MANAGER} (not ({_WEBHOOKS}))": "certManager.enabled makes a certificate for webhooks, but this "
    "release has none: they need webhooks.enabled, and rights in all namespaces.",
}


# templates


def _templates() -> dict[str, Sequence[Node]]:
    accounts = [pod.annotated(workload.service_account())]
    return {
        "serviceaccount": _placed(accounts),
        "rbac": _rights(),
        "service": [_service()],
        "deployment": _placed([_deployment()]),
        "webhook": [when(_WEBHOOKS, hooks.configured(NAME, webhook_configurations(), _CERTIFICATE))],
        "certificate": hooks.certificate(NAME, _CERTIFICATE, NAME, WEBHOOK_SECRET),
        "poddisruptionbudget": [when(_SEVERAL, _placed([availability.disruption_budget()]))],
        **{name: [when(f"$.Values.components.{_camel(name)}", found)] for name, found in _components().items()},
        **{name: monitoring.selected(NAME, _camel(name), component_objects()[name]) for name in _SELECTED},
    }


def _rights() -> list[Node]:
    """The rights in all namespaces or only in some, and those in the operator's own."""
    everywhere = [rbac.cluster_role(), rbac.cluster_role_binding()]
    own = [rbac.leases_role(), rbac.leases_role_binding()]
    webhooks = [rbac.webhook_role(), rbac.webhook_role_binding()]
    return [
        *_everywhere_or_in_some(everywhere, [rbac.namespaced_role(), rbac.namespaced_role_binding()]),
        *_placed(own),
        when(_WEBHOOKS, _placed(webhooks)),
    ]


def _everywhere_or_in_some(everywhere: Iterable[Json], some: Iterable[Json]) -> list[Node]:
    namespaces = f"$.Values.namespaces | default (list {NAMESPACE_NAME})"
    each = {Action(f"range $namespace := {namespaces}"): _placed(some, _HERE)}
    return [when(f"not {_NAMESPACED}", _placed(everywhere)), when(_NAMESPACED, [each])]


def _components() -> dict[str, Sequence[Node]]:
    found = component_objects()
    parts: dict[str, Sequence[Node]] = {
        "user-roles": _placed(found["user-roles"]),
        "secure-metrics": _placed(found["secure-metrics"]),
        "progress": _placed(found["progress"]),
        "network-policy": list(map(monitoring.admitting, _placed(found["network-policy"]))),
    }
    everywhere, some = rbac.component_roles(), rbac.component_roles("Role")
    parts |= {name: _everywhere_or_in_some(everywhere[name], found) for name, found in some.items()}
    parts["kueue"] = _placed(everywhere["kueue"])
    return {**parts, BESIDE: _beside()}


def _beside() -> list[Node]:
    """What DIJobs need beside the operator."""
    found = beside()
    deployment, account = _find(found, "Deployment"), _find(found, "ServiceAccount")
    others = [each for each in found if each not in (deployment, account) and "webhooks" not in each]
    server = pod.flagged(pod.configured(deployment, DI_SERVER), DI_SERVER)
    webhooks = [each for each in found if "webhooks" in each]
    return [
        *_placed([pod.annotated(account, DI_SERVER), *others, server]),
        when(_WEBHOOKS, hooks.configured(NAME, webhooks, _CERTIFICATE)),
    ]


def _find(found: Iterable[Json], kind: str) -> Json:
    return next(each for each in found if each["kind"] == kind)


def _service() -> Node:
    """With `components.secureMetrics`, the port has the name that a ServiceMonitor scrapes over TLS."""
    (found,) = _placed([workload.service()])
    annotations = when(f"not {_SECURE}", {"annotations": find(found, ("metadata", "annotations"))})
    metadata = {name: value for name, value in found["metadata"].items() if name != "annotations"}
    names = f'ternary "{secure_metrics.SECURE_PORT}" "{secure_metrics.PORT}" {_SECURE}'
    found = put(found, ("metadata",), {**metadata, **annotations})
    found = replace(found, ("spec", "ports", 0, "name"), Expression(names))
    return put(found, _PORTS, [*find(found, _PORTS), when(_PROGRESS, [progress.PORT])])


def _deployment() -> Node:
    spread = when(_SEVERAL, {"topologySpreadConstraints": availability.spread()})
    found = pod.configured(_base(), spread=spread)
    found = put(found, _COMMAND, [*find(found, _COMMAND), *_flags()])
    ports = [*find(found, _CONTAINER_PORTS), when(_PROGRESS, [progress.CONTAINER_PORT])]
    found = put(found, _CONTAINER_PORTS, ports)
    return replace(found, ("spec", "replicas"), Expression("$.Values.replicas | int"))


def _base() -> Json:
    """The Deployment with the flags that no value changes."""
    return workload.deployment(flags=[workload.JSON_LOGS])


def _flags() -> list[Node]:
    each = Expression(". | quote")
    given = Expression('printf "--namespace=%s" (join "," .) | quote')
    return [
        when(_ELECTS, [availability.LEADER_FLAG]),
        {Action("with $.Values.namespaces"): [given]},
        when("and $.Values.namespaced (not $.Values.namespaces)", ["--namespace=$(MY_POD_NAMESPACE)"]),
        when(f"not ({_WEBHOOKS})", ["--webhook-server-port=0"]),
        when(_DIJOB, [FLAGS_BESIDE[0]]),
        when(f"and {_DIJOB} ({_WEBHOOKS})", [FLAGS_BESIDE[1]]),
        when(_SECURE, [secure_metrics.FLAG]),
        when(_PROGRESS, [progress.FLAG]),
        {Action("range $.Values.schemes"): [Expression('printf "--enable-scheme=%s" . | quote')]},
        {Action("with $.Values.gangSchedulerName"): [Expression('printf "--gang-scheduler-name=%s" . | quote')]},
        {Action("with $.Values.serviceMode"): [Expression(f'printf "{service_mode.FLAG}=%s" . | quote')]},
        {Action("range $.Values.args"): [each]},
    ]


def _camel(name: str) -> str:
    first, *others = name.split("-")
    return first + "".join(word.capitalize() for word in others)


_NOTES = notes(
    f"""\
training-operator {{{{ $.Chart.AppVersion }}}} is installed in the namespace {{{{ $namespace }}}}.
{{{{- if {_NAMESPACED} }}}}
It works on jobs in {{{{ $.Values.namespaces | default (list $namespace) | join ", " }}}}.
{{{{- else }}}}
It works on jobs in all namespaces.
{{{{- end }}}}
""",
    [NAME],
    "pytorchjobs",
    """\
{{- if not (and $.Values.components.mpiSsh $.Values.components.mpiExec) }}

MPIJobs need further rights: components.mpiSsh for kubeflow.org/v2beta1, components.mpiExec for kubeflow.org/v1.
Without them such a job waits, with an event that says so.
{{- end }}
""",
    {
        f"lease/{TRAINING_LEASE}": _ELECTS,
        f"secret/{WEBHOOK_SECRET}": f"and ({_WEBHOOKS}) (not {hooks.CERT_MANAGER})",
    },
)
