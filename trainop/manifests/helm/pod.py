"""What every Deployment of every chart can be given: one table, placed into each of them by path.

The values stand at the top of `values.yaml` and hold for all Deployments. A chart with several has a section for each
further one, whose values replace those at the top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainop.manifests.helm import schemas
from trainop.manifests.helm.template import Action, Expression, Lines, Node, find, put
from trainop.manifests.helm.values import Section, Value
from trainop.runtime import Json

_Path = tuple[str | int, ...]
_TEMPLATE: _Path = ("spec", "template")
_POD: _Path = (*_TEMPLATE, "spec")
_CONTAINER: _Path = (*_POD, "containers", 0)
VARIABLES = ["MY_POD_NAMESPACE", "MY_POD_NAME", "MY_POD_UID"]
LABEL = "app.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class Knob:
    """A value of a Deployment. `own` belongs to one program; other values at the top hold for all programs. What the
    object has at `path` becomes the default, but for `added`, which come in addition to it."""

    name: str
    path: _Path
    schema: Json
    comment: str
    empty: Any
    own: bool = False
    added: bool = False


KNOBS = (
    Knob("resources", (*_CONTAINER, "resources"), schemas.RESOURCES, "", {}, own=True),
    Knob("livenessProbe", (*_CONTAINER, "livenessProbe"), schemas.PROBE, "", {}, own=True),
    Knob("readinessProbe", (*_CONTAINER, "readinessProbe"), schemas.PROBE, "", {}, own=True),
    Knob(
        "env",
        (*_CONTAINER, "env"),
        schemas.variables(VARIABLES),
        "Further environment variables, such as HTTPS_PROXY.",
        [],
        own=True,
        added=True,
    ),
    Knob("volumes", (*_POD, "volumes"), schemas.VOLUMES, "Further volumes.", [], own=True, added=True),
    Knob("volumeMounts", (*_CONTAINER, "volumeMounts"), schemas.MOUNTS, "Their mounts.", [], own=True, added=True),
    Knob("imagePullSecrets", (*_POD, "imagePullSecrets"), schemas.PULL_SECRETS, "", []),
    Knob("nodeSelector", (*_POD, "nodeSelector"), schemas.TEXTS, "", {}),
    Knob("tolerations", (*_POD, "tolerations"), schemas.TOLERATIONS, "", []),
    Knob("affinity", (*_POD, "affinity"), schemas.AFFINITY, "", {}),
    Knob(
        "topologySpreadConstraints",
        (*_POD, "topologySpreadConstraints"),
        schemas.SPREAD,
        "",
        [],
    ),
    Knob("priorityClassName", (*_POD, "priorityClassName"), schemas.STRING, "", ""),
    Knob("strategy", ("spec", "strategy"), schemas.STRATEGY, "How pods are replaced in an update.", {}),
    Knob(
        "terminationGracePeriodSeconds",
        (*_POD, "terminationGracePeriodSeconds"),
        schemas.COUNT,
        "How long a pod may take to end.",
        30,
    ),
    Knob("podSecurityContext", (*_POD, "securityContext"), schemas.POD_SECURITY, "", {}),
    Knob("securityContext", (*_CONTAINER, "securityContext"), schemas.CONTAINER_SECURITY, "", {}),
    Knob("podLabels", (*_TEMPLATE, "metadata", "labels"), schemas.TEXTS, "Further labels of pods.", {}, added=True),
    Knob(
        "podAnnotations", (*_TEMPLATE, "metadata", "annotations"), schemas.TEXTS, "Annotations of pods.", {}, own=True
    ),
)
ACCOUNT_ANNOTATIONS = Value(
    "serviceAccountAnnotations",
    {},
    schemas.TEXTS,
    "Annotations of service accounts, such as those that bind them to an identity of a cloud.",
)


def image_values(repository: str) -> list[Value]:
    return [
        Value("image.repository", repository, schemas.STRING),
        # a number such as 1.10 would lose its zero
        Value("image.tag", "", {"type": ["string", "integer"]}, "Empty: the version of the chart."),
        Value("image.pullPolicy", "", schemas.one_of("", "Always", "IfNotPresent", "Never")),
    ]


def common_values(deployments: Sequence[Json]) -> list[Value]:
    """The values that hold for all Deployments of a chart."""
    return [*(_value(knob, deployments) for knob in KNOBS if not knob.own), ACCOUNT_ANNOTATIONS]


def own_values(deployment: Json, section: str = "") -> list[Value]:
    """The values of one program, below `section`."""
    prefix = f"{section}." if section else ""
    found = (_value(knob, [deployment]) for knob in KNOBS if knob.own)
    return [Value(f"{prefix}{value.path}", value.default, value.schema, value.comment) for value in found]


def section(path: str, comment: str, deployment: Json) -> Section:
    """The section of a program, which may also have the values that hold for all."""
    return Section(path, comment, common_values([deployment]))


def _value(knob: Knob, deployments: Sequence[Json]) -> Value:
    default = find(deployments[0], knob.path)
    schema = knob.schema
    if knob.name == "podLabels":
        taken = {label: "" for each in deployments for label in find(each, knob.path)}
        schema = schemas.without({**taken, f"{LABEL}name": "", f"{LABEL}instance": ""}, schema)
    return Value(knob.name, knob.empty if knob.added or default is None else default, schema, knob.comment)


def configured(deployment: Json, section: str = "", *, spread: Node = None) -> Node:
    """The Deployment with all values in their places. `spread` are the entries of the pod that stand for
    `topologySpreadConstraints` if that value is empty."""
    found: Node = deployment
    for knob in KNOBS:
        found = _place(found, knob, _chosen(knob.name, section, own=knob.own))
    container = find(found, _CONTAINER)
    found = put(
        found,
        _CONTAINER,
        {
            **container,
            "image": Expression(
                'printf "%s:%v" $.Values.image.repository ($.Values.image.tag | default $.Chart.AppVersion) | quote'
            ),
            Action("with $.Values.image.pullPolicy"): {"imagePullPolicy": Expression(".")},
        },
    )
    if spread:
        unless = Action(f"if not {_chosen('topologySpreadConstraints', section)}")
        found = put(found, _POD, {**find(found, _POD), unless: spread})
    return found


def flags_value(section: str = "") -> Value:
    return Value(f"{section}.args".lstrip("."), [], schemas.STRINGS, "Further flags.")


def flagged(deployment: Node, section: str = "") -> Node:
    """The Deployment of a program that takes its flags from `args`, with those of the values."""
    chosen = _chosen("args", section, own=True)
    given = find(deployment, (*_CONTAINER, "args"))
    if given:
        return put(deployment, (*_CONTAINER, "args"), [*given, {Action(f"range {chosen}"): [Expression(". | quote")]}])
    entry = {Action(f"with {chosen}"): {"args": Lines("toYaml .")}}
    return put(deployment, _CONTAINER, {**find(deployment, _CONTAINER), **entry})


def component_values(switches: Mapping[str, str]) -> list[Value | Section]:
    """The switches of the components, by name; each with what it is for."""
    rows = [Value(f"components.{name}", False, schemas.BOOLEAN, text) for name, text in switches.items()]
    return [Section("components", "Parts that are off by default."), *rows]


def replicas_value(section: str = "") -> Value:
    return Value(f"{section}.replicas".lstrip("."), 1, schemas.COUNT)


def replicated(deployment: Node, section: str = "") -> Node:
    """The Deployment with the number of replicas of the values."""
    return put(deployment, ("spec", "replicas"), Expression(f"{_chosen('replicas', section, own=True)} | int"))


def annotated(account: Json, section: str = "") -> Node:
    """The service account with its annotations."""
    chosen = _chosen(ACCOUNT_ANNOTATIONS.path, section)
    entry = {Action(f"with {chosen}"): {"annotations": Lines("toYaml .")}}
    return {**account, "metadata": {**account["metadata"], **entry}}


def _chosen(name: str, section: str, *, own: bool = False) -> str:
    """The expression of a value: that of the section, else that at the top."""
    if not section:
        return f"$.Values.{name}"
    if own:
        return f"$.Values.{section}.{name}"
    return f'(ternary $.Values.{section}.{name} $.Values.{name} (hasKey $.Values.{section} "{name}"))'


def _place(deployment: Node, knob: Knob, chosen: str) -> Node:
    *above, last = knob.path
    name = str(last)
    place = find(deployment, above) or {}
    there = place.get(name) if knob.added else None
    if isinstance(there, list):
        value = {**place, name: [*there, {Action(f"with {chosen}"): [Lines("toYaml .")]}]}
    elif isinstance(there, dict):
        value = {**place, name: {**there, Action(f"with {chosen}"): {Lines("toYaml ."): None}}}
    else:
        kept = {key: entry for key, entry in place.items() if key != name}
        value = {**kept, **_field(name, knob.empty, chosen)}
    return put(deployment, tuple(above), value)


def _field(name: str, empty: Any, chosen: str) -> Node:
    """The field, left out if its value is empty. Of numbers, 0 is a value."""
    if isinstance(empty, int):
        return {Action(f'if not (kindIs "invalid" {chosen})'): {name: Expression(f"{chosen} | int64")}}
    text = Expression(". | quote") if isinstance(empty, str) else Lines("toYaml .")
    return {Action(f"with {chosen}"): {name: text}}
