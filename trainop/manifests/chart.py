"""The Helm chart: templates of the same objects as the kustomizations.

An object is written as YAML in which placeholders stand where values go. `_NAMESPACE` and the like are scalars, each
replaced by an expression. A line `__name__` is replaced by the lines of the block of that name, with its indentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainop import __version__
from trainop.manifests import availability, rbac, workload
from trainop.manifests.components import objects as component_objects
from trainop.manifests.di import BESIDE, FLAGS_BESIDE, beside
from trainop.manifests.names import IMAGE, NAME
from trainop.manifests.text import GENERATED, HEADER, to_yaml
from trainop.manifests.webhook import webhook_configurations
from trainop.operator import crds
from trainop.runtime.objects.metadata import Json

ROOT = "chart"
_NAMESPACE, _IMAGE, _REPLICAS, _POLICY = "NAMESPACE-VALUE", "IMAGE-VALUE", "REPLICAS-VALUE", "POLICY-VALUE"
_SCALARS = {
    _NAMESPACE: "{{ .Values.namespaceOverride | default .Release.Namespace | quote }}",
    _IMAGE: '{{ printf "%s:%v" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}',
    _REPLICAS: "{{ .Values.replicas }}",
    _POLICY: "{{ .Values.webhooks.failurePolicy }}",
}
_SEVERAL = "gt (int .Values.replicas) 1"
_DIJOB = "and .Values.components.dijob (not .Values.namespaced)"
_WEBHOOKS = "and .Values.webhooks.enabled (not .Values.namespaced)"

_FLAGS = f"""\
{{{{- if or .Values.leaderElection ({_SEVERAL}) }}}}
- {availability.LEADER_FLAG}
{{{{- end }}}}
{{{{- if .Values.namespaced }}}}
- --namespace=$(MY_POD_NAMESPACE)
{{{{- end }}}}
{{{{- if not ({_WEBHOOKS}) }}}}
- --webhook-server-port=0
{{{{- end }}}}
{{{{- if {_DIJOB} }}}}
- {FLAGS_BESIDE[0]}
- {FLAGS_BESIDE[1]}
{{{{- end }}}}
{{{{- range .Values.schemes }}}}
- {{{{ printf "--enable-scheme=%s" . | quote }}}}
{{{{- end }}}}
{{{{- with .Values.gangSchedulerName }}}}
- {{{{ printf "--gang-scheduler-name=%s" . | quote }}}}
{{{{- end }}}}
{{{{- range .Values.args }}}}
- {{{{ . | quote }}}}
{{{{- end }}}}
"""

VALUES = f"""\
image:
  repository: {IMAGE}
  tag: ""  # the version of the chart
  pullPolicy: ""
imagePullSecrets: []
namespaceOverride: ""  # instead of the namespace of the release

# More than one replica elects a leader, is spread over nodes, and has a PodDisruptionBudget.
replicas: 1
leaderElection: false

# Permissions only in the operator's namespace, and no webhooks.
namespaced: false

schemes: []  # kinds, such as PyTorchJob; none: all
gangSchedulerName: ""
args: []  # further flags

webhooks:
  enabled: true
  failurePolicy: Ignore  # Fail: without the operator no job is created or changed

{to_yaml({"resources": workload.RESOURCES})}\
nodeSelector: {{}}
tolerations: []
affinity: {{}}
priorityClassName: ""

components:
  mpiSsh: false  # the rights for MPIJobs with transport ssh (kubeflow.org/v2beta1)
  mpiExec: false  # the rights for MPIJobs with transport exec (kubeflow.org/v1)
  userRoles: false
  networkPolicy: false
  serviceMonitor: false
  prometheusRule: false
  grafanaDashboard: false
  dijob: false  # what DIJobs need: di-server, and their webhooks; not with namespaced
"""


def chart_files() -> dict[str, str]:
    """The content of all files of the chart, by path below the manifests."""
    metadata = {
        "apiVersion": "v2",
        "name": NAME,
        "description": "One operator for TFJob, PyTorchJob, MXJob, XGBoostJob, PaddleJob, JAXJob and MPIJob",
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
        "kubeVersion": ">=1.27.0-0",
    }
    files = {f"{ROOT}/Chart.yaml": HEADER + to_yaml(metadata), f"{ROOT}/values.yaml": HEADER + VALUES}
    # Helm creates what is in this folder, and neither changes nor deletes it.
    files |= {f"{ROOT}/crds/{each['metadata']['name']}.yaml": HEADER + to_yaml(each) for each in crds()}
    return files | {f"{ROOT}/templates/{name}.yaml": _HEADER + text for name, text in _templates().items()}


_HEADER = f"{{{{- /* {GENERATED}; change trainop/manifests/. */ -}}}}\n"


def _templates() -> dict[str, str]:
    return {
        "serviceaccount": _render(_placed([workload.service_account()])),
        "rbac": _rbac(),
        "service": _render(_placed([workload.service()])),
        "deployment": _render(_placed([_deployment()])),
        "webhook": _when(_WEBHOOKS, _render(map(_configured, webhook_configurations()))),
        "poddisruptionbudget": _when(_SEVERAL, _render(_placed([availability.disruption_budget()]))),
        **{
            name: _when(f".Values.components.{_camel(name)}", _render(_placed(component_objects()[name])))
            for name in ("user-roles", "network-policy", "service-monitor", "prometheus-rule", "grafana-dashboard")
        },
        **{name: _when(f".Values.components.{_camel(name)}", _transport(name)) for name in rbac.transport_roles()},
        BESIDE: _when(_DIJOB, _beside()),
    }


def _rbac() -> str:
    """The rights in all namespaces or, with `namespaced`, in one."""
    everywhere = _render([rbac.cluster_role(), rbac.cluster_role_binding(_NAMESPACE)])
    here = _render(_placed([rbac.namespaced_role(), _in_namespace(rbac.namespaced_role_binding())]))
    leases = _render(_placed([rbac.leases_role(), rbac.leases_role_binding(_NAMESPACE)]))
    webhooks = _render(_placed([rbac.webhook_role(), rbac.webhook_role_binding(_NAMESPACE)]))
    return f"{_everywhere_or_here(everywhere, here)}---\n{leases}" + _when(_WEBHOOKS, f"---\n{webhooks}")


def _transport(name: str) -> str:
    """The rights for a transport of MPIJob, in all namespaces or in one."""
    return _everywhere_or_here(
        _render(rbac.transport_roles(namespace=_NAMESPACE)[name]),
        _render(_placed(rbac.transport_roles("Role", _NAMESPACE)[name])),
    )


def _beside() -> str:
    """What DIJobs need beside the operator."""
    found = [_in_namespace(each) if "subjects" in each else each for each in beside(_IMAGE)]
    plain = _render(_placed([each for each in found if "webhooks" not in each]))
    return plain + _when(_WEBHOOKS, "---\n" + _render(map(_configured, (each for each in found if "webhooks" in each))))


def _configured(configuration: Json) -> Json:
    """A webhook configuration with the namespace and failure policy of the values."""
    webhooks = [{**webhook, "failurePolicy": _POLICY} for webhook in configuration["webhooks"]]
    for webhook in webhooks:
        client = webhook["clientConfig"]
        webhook["clientConfig"] = {"service": {**client["service"], "namespace": _NAMESPACE}}
    return {**configuration, "webhooks": webhooks}


def _everywhere_or_here(everywhere: str, here: str) -> str:
    return f"{{{{- if .Values.namespaced }}}}\n{here}{{{{- else }}}}\n{everywhere}{{{{- end }}}}\n"


def _in_namespace(binding: Json) -> Json:
    return {**binding, "subjects": [{**subject, "namespace": _NAMESPACE} for subject in binding["subjects"]]}


def _deployment() -> Json:
    deployment = workload.deployment(_IMAGE)
    spec = deployment["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    container = {**container, "command": [*container["command"], "__flags__"], "__pull_policy__": None}
    container["__resources__"] = None
    del container["resources"]  # the value has them
    pod = {**pod, "containers": [container], "__scheduling__": None}
    template = {**spec["template"], "spec": pod}
    return {**deployment, "spec": {**spec, "replicas": _REPLICAS, "template": template}}


def _with(value: str, field: str) -> str:
    """A field that is left out if its value is empty."""
    return f"{{{{- with .Values.{value} }}}}\n{field}\n{{{{- end }}}}\n"


def _structure(name: str) -> str:
    return _with(name, f"{name}:\n  {{{{- toYaml . | nindent INDENT }}}}")


_SPREAD = f"{{{{- if {_SEVERAL} }}}}\n{to_yaml({'topologySpreadConstraints': availability.spread()})}{{{{- end }}}}\n"
_BLOCKS = {
    "flags": _FLAGS,
    "pull_policy": _with("image.pullPolicy", "imagePullPolicy: {{ . }}"),
    "resources": _structure("resources"),
    "scheduling": "".join(
        [
            *(_structure(name) for name in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity")),
            _with("priorityClassName", "priorityClassName: {{ . }}"),
            _SPREAD,
        ]
    ),
}


def _placed(found: Iterable[Json]) -> list[Json]:
    """The objects in the namespace of the operator, but for those without one."""
    return [
        item
        if item["kind"].startswith("Cluster")
        else {**item, "metadata": {**item["metadata"], "namespace": _NAMESPACE}}
        for item in found
    ]


def _render(found: Iterable[Json]) -> str:
    """The objects as a template. Double braces of theirs, as in alerts, are not Helm's."""
    text = to_yaml(*found).replace("{{", '{{ "{{" }}')
    for placeholder, expression in _SCALARS.items():
        text = text.replace(placeholder, expression)
    return re.sub(r"^( *)(?:- )?__(\w+)__(?:: null)?\n", _expand, text, flags=re.MULTILINE)


def _expand(found: re.Match[str]) -> str:
    indentation, name = found[1], found[2]
    lines = _BLOCKS[name].replace("INDENT", str(len(indentation) + 2)).splitlines()
    return "".join(f"{indentation}{line}\n" for line in lines)


def _when(condition: str, text: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


def _camel(name: str) -> str:
    first, *others = name.split("-")
    return first + "".join(word.capitalize() for word in others)
