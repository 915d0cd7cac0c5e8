"""Finds fields of pod templates that Kubernetes does not know, such as `resource` for `resources`.

The CRDs keep every field of a template, so that new fields of Kubernetes pass. The API server drops unknown fields from
the pods and says so to the client that creates them, which is the operator. What is found here is therefore a warning
at admission, and an error only where no cluster is involved (`trainop run`, `trainop check`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from trainop.runtime import Json
from trainop.runtime.lowlevel import FieldTree, cut, pod_template_fields

MAX_FOUND = 20
"""Unknown fields of one object that are reported. Finding a similar name takes up to a millisecond."""

MAX_NAME_LENGTH = 64
"""Characters of an unknown field's name in a message. Longer ones are no misspelling of a known field."""

_LEVELS = 3
"""Levels of the spec in which templates are searched: `spec.<roles>.<role>.template`."""


class Place(NamedTuple):
    """An object in a template: its field path and its type."""

    path: str
    type: FieldTree


def describe_unknown_fields(job: Json) -> Iterator[str]:
    """One message for each unknown field of the pod templates in a raw job, at most `MAX_FOUND`. Never raises, whatever
    the job contains."""
    templates = find_templates(job.get("spec"), "spec")
    found = (_walk(template, [Place(path, pod_template_fields())]) for path, template in templates)
    yield from islice(chain.from_iterable(found), MAX_FOUND)


def find_templates(value: object, path: str, levels: int = _LEVELS) -> Iterator[tuple[str, Json]]:
    """All pod templates of a spec with their field paths, whatever kind the job is of."""
    if not isinstance(value, dict) or not levels:
        return
    for name, member in value.items():
        if name != "template":
            yield from find_templates(member, f"{path}.{cut(name, MAX_NAME_LENGTH)}", levels - 1)
        elif isinstance(member, dict):
            yield f"{path}.template", member


def describe_dropped_field(template: str, path: str) -> str:
    """The message for a field that the API server does not know. `template` is the field path of the pod template in
    the job, and `path` that of the field in the pod, such as `spec.containers[0].resource`."""
    places = [Place(template, pod_template_fields())]
    *parents, name = path.split(".")
    for parent in parents:
        field = parent.partition("[")[0]
        inner = places[-1].type.fields.get(field)
        if inner is None:
            return f"{template}.{path}: unknown field"
        places.append(Place(f"{places[-1].path}.{parent}", inner))
    return _describe(name, places)


def _walk(value: object, places: Sequence[Place]) -> Iterator[str]:
    """The messages for the last of `places`, which are the places from the template down to `value`. A value of a wrong
    type is not looked into: the API server refuses it."""
    path, known = places[-1]
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, [*places[:-1], Place(f"{path}[{index}]", known)])
    elif isinstance(value, dict):
        for name, member in value.items():
            if name not in known.fields:
                yield _describe(name, places)
            elif (inner := known.fields[name]) is not None and isinstance(member, list) == (name in known.lists):
                yield from _walk(member, [*places, Place(f"{path}.{name}", inner)])


def _describe(name: str, places: Sequence[Place]) -> str:
    return unknown_field(f"{places[-1].path}.{cut(name, MAX_NAME_LENGTH)}", _find_meant(name, places))


def unknown_field(path: str, meant: str = "") -> str:
    """The message for an unknown field; `meant` is the field that was probably meant."""
    return f"{path}: unknown field" + (f', did you mean "{meant}"?' if meant else "")


def _find_meant(name: str, places: Sequence[Place]) -> str:
    """The known field that was probably meant: one that differs in case only, the same name at a level above or below
    (wrong indentation), or the most similar name. Empty if there is none."""
    here = places[-1].type
    for known in here.fields:
        if _plain(known) == _plain(name):
            return known
    for path, above in reversed(places[:-1]):
        if name in above.fields:
            return f"{path}.{name}"
    for known, below in here.fields.items():
        if below is not None and name in below.fields:
            return f"{known}{'[]' if known in here.lists else ''}.{name}"
    return similar(name, here.fields)


def similar(name: str, known: Iterable[str]) -> str:
    """The most similar of the `known` names, whatever the case; empty if none is similar."""
    if len(name) > MAX_NAME_LENGTH:
        return ""
    from difflib import get_close_matches  # noqa: PLC0415  # saves memory until a field is misspelt

    by_letters = {each.lower(): each for each in known}
    return next((by_letters[each] for each in get_close_matches(name.lower(), by_letters, n=1)), "")


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
