"""JSON schemas of values. What Kubernetes defines is open below the names of its first level, which are all given: a
misspelt one is refused here, a deeper one by the API server."""

from __future__ import annotations

from trainop.runtime import Json

BOOLEAN: Json = {"type": "boolean"}
STRING: Json = {"type": "string"}
STRINGS: Json = {"type": "array", "items": STRING}
COUNT: Json = {"type": "integer", "minimum": 0}
TEXTS: Json = {"type": "object", "additionalProperties": STRING}
"""Labels, annotations or selectors: the API server takes texts alone, so that `true` and `1` need quotes."""


def one_of(*names: str) -> Json:
    return {"type": "string", "enum": list(names)}


def structure(*names: str) -> Json:
    """An object with these fields at most."""
    return {"type": "object", "additionalProperties": False, "properties": {name: {} for name in names}}


def listed(*names: str) -> Json:
    """A list of objects with these fields at most."""
    return {"type": "array", "items": structure(*names)}


def without(names: dict[str, str], schema: Json) -> Json:
    """A mapping that has none of these names, which the chart sets."""
    return {**schema, "propertyNames": {"not": {"enum": sorted(names)}}}


PULL_SECRETS = listed("name")
TOLERATIONS = listed("key", "operator", "value", "effect", "tolerationSeconds")
AFFINITY = structure("nodeAffinity", "podAffinity", "podAntiAffinity")
SPREAD = listed(
    *("maxSkew", "minDomains", "topologyKey", "whenUnsatisfiable", "labelSelector", "matchLabelKeys"),
    *("nodeAffinityPolicy", "nodeTaintsPolicy"),
)
STRATEGY: Json = {
    **structure("type", "rollingUpdate"),
    "properties": {
        "type": one_of("RollingUpdate", "Recreate"),
        "rollingUpdate": structure("maxSurge", "maxUnavailable"),
    },
}
TLS = structure(
    *("ca", "caFile", "cert", "certFile", "insecureSkipVerify", "keyFile", "keySecret", "maxVersion", "minVersion"),
    "serverName",
)
RESOURCES = structure("limits", "requests", "claims")
PROBE = structure(
    *("httpGet", "exec", "tcpSocket", "grpc", "initialDelaySeconds", "periodSeconds", "timeoutSeconds"),
    *("successThreshold", "failureThreshold", "terminationGracePeriodSeconds"),
)
MOUNTS = listed("name", "mountPath", "mountPropagation", "readOnly", "recursiveReadOnly", "subPath", "subPathExpr")
VOLUMES: Json = {"type": "array", "items": {"type": "object", "required": ["name"]}}
POD_SECURITY = structure(
    *("appArmorProfile", "fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsNonRoot", "runAsUser"),
    *("seLinuxChangePolicy", "seLinuxOptions", "seccompProfile", "supplementalGroups", "supplementalGroupsPolicy"),
    *("sysctls", "windowsOptions"),
)
CONTAINER_SECURITY = structure(
    *("allowPrivilegeEscalation", "appArmorProfile", "capabilities", "privileged", "procMount"),
    *("readOnlyRootFilesystem", "runAsGroup", "runAsNonRoot", "runAsUser", "seLinuxOptions", "seccompProfile"),
    "windowsOptions",
)


def variables(taken: list[str]) -> Json:
    """Environment variables but those that the chart sets."""
    schema = listed("name", "value", "valueFrom")
    fields = {"name": {"type": "string", "not": {"enum": taken}}, "value": STRING, "valueFrom": {"type": "object"}}
    return {**schema, "items": {**schema["items"], "required": ["name"], "properties": fields}}
