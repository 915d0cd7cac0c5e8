"""The text of `trainop plan`: the objects of a job as a tree, similar ones together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainop.engine.fields import as_object
from trainop.engine.framework import REPLICA_TYPE
from trainop.engine.pod_resources import Resources, add_multiple, pod_requests
from trainop.explain.rehearsal import Made, Rehearsal
from trainop.runtime import PODS, Json
from trainop.runtime.lowlevel import cut, printable

MAX_VALUE = 100
"""Bytes of a variable's value or of a command that are shown."""


def describe(kind: str, name: str, namespace: str, found: Rehearsal, services: Mapping[str, int]) -> Iterator[str]:
    """The lines about one job. `services`: service mode -> number of Services that it makes."""
    yield f"{kind} {_clean(name)} in namespace {_clean(namespace)} {_summary(found)}"
    groups = _group(found.made)
    for index, group in enumerate(groups):
        last = index == len(groups) - 1
        first, *rest = _lines_of(group)
        yield f"{'└─' if last else '├─'} {first}"
        for line in rest:
            yield f"{'  ' if last else '│ '}     {line}"
    for warning in found.warnings:
        yield f"warning: {_clean(warning)}"
    if requests := _requests(found.made):
        yield f"requests of all pods: {requests}"
    if len(set(services.values())) > 1:
        yield "Services by --service-mode: " + ", ".join(f"{mode} {count}" for mode, count in services.items())


def _summary(found: Rehearsal) -> str:
    if found.refused:
        return f"would fail at once: {_clean(found.refused)}"
    if found.left_to:
        return f"is left to {_clean(found.left_to)} (spec.runPolicy.managedBy); nothing is made"
    counts = Counter(each.resource.kind for each in found.made)
    parts = ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items())
    when = "is suspended; once resumed, it makes" if found.suspended else "makes"
    return f"{when} {parts or 'nothing'}"


def _group(made: Sequence[Made]) -> list[list[Made]]:
    """Pods and services of one role together, in the order of the first of each."""
    groups: dict[tuple[str, str], list[Made]] = {}
    for each in made:
        role = _labels(each).get(REPLICA_TYPE, "") or each.name
        groups.setdefault((each.resource.kind, role), []).append(each)
    return list(groups.values())


def _labels(made: Made) -> Mapping[str, str]:
    return as_object(made.manifest["metadata"].get("labels"))


def _lines_of(group: Sequence[Made]) -> Iterator[str]:
    first = group[0]
    names = _clean(first.name) if len(group) == 1 else f"{_clean(first.name)} … {_clean(group[-1].name)}"
    amount = f"{len(group)} {first.resource.kind}s" if len(group) > 1 else first.resource.kind
    yield f"{amount} {names}" + ("  (content is generated)" if first.completed else "")
    if first.resource == PODS:
        yield from _pod_lines(group)
    elif template := _pod_template(first.manifest):
        yield from _container_lines(template)
    elif first.resource.kind == "Service":
        ports = first.manifest["spec"].get("ports") or ()
        yield "headless, " + (", ".join(f"port {_clean(str(each.get('port')))}" for each in ports) or "no port")
    elif first.resource.kind == "PodGroup":
        yield _clean(" ".join(f"{name}={value}" for name, value in first.manifest["spec"].items()))
    elif isinstance(data := first.manifest.get("data"), dict):
        yield f"keys {', '.join(map(_clean, sorted(data)))}"


def _pod_template(manifest: Json) -> Json | None:
    """The spec of the pods that another controller makes, as of a batch Job."""
    found = as_object(as_object(as_object(manifest.get("spec")).get("template")).get("spec"))
    return found if found.get("containers") else None


def _pod_lines(group: Sequence[Made]) -> Iterator[str]:
    spec = group[0].manifest["spec"]
    yield from _container_lines(spec)
    values: dict[str, list[str]] = {}
    for each in group:
        for entry in each.manifest["spec"]["containers"][0].get("env") or ():
            if isinstance(entry.get("value"), str):
                values.setdefault(entry["name"], []).append(entry["value"])
    for name, given in values.items():
        same = len(set(given)) == 1
        text = given[0] if same else f"{_short(given[0])} … {_short(given[-1])}"
        yield f"{_clean(name)}={_short(text) if same else text}"


def _container_lines(spec: Json) -> Iterator[str]:
    for role, containers in (("init container", spec.get("initContainers")), ("container", spec.get("containers"))):
        for each in containers or ():
            words = [*(each.get("command") or ()), *(each.get("args") or ())]
            command = " ".join(map(str, words)) or "(the image's command)"
            yield f"{role} {_clean(each['name'])}: {_short(command)}  [{_clean(str(each.get('image', 'no image')))}]"
    requests = _format(pod_requests(spec))
    if requests:
        yield f"requests {requests}"
    for name in ("schedulerName", "nodeSelector", "priorityClassName", "subdomain"):
        if spec.get(name):
            yield f"{name}: {_short(str(spec[name]))}"


def _requests(made: Sequence[Made]) -> str:
    total: Resources = {}
    for each in made:
        spec = each.manifest["spec"] if each.resource == PODS else _pod_template(each.manifest)
        if spec is not None:
            add_multiple(total, pod_requests(spec), 1)
    return _format(total)


def _format(resources: Resources) -> str:
    return ", ".join(f"{_clean(name)} {quantity}" for name, quantity in sorted(resources.items()))


def _short(text: str) -> str:
    return cut(_clean(text), MAX_VALUE)


def _clean(text: str) -> str:
    """In one line, without control characters, which could be commands to a terminal."""
    return printable(" ".join(text.split()))


def as_list(made: Sequence[Made]) -> dict[str, Any]:
    """The objects as a List of `v1`."""
    return {"apiVersion": "v1", "kind": "List", "items": [each.manifest for each in made]}
