"""The differences between what two manifests make, or between that and what a cluster has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.explain.rehearsal import JOB_UID, Made
from trainop.runtime import Json
from trainop.runtime.lowlevel import cut, printable

Named: TypeAlias = Mapping[tuple[str, str], Json]
"""(kind, name) -> object."""

MAX_NAMES = 3
"""Names of objects with equal differences that are shown."""

MAX_VALUE = 200
"""Bytes of a value that are shown."""

_KEYS = ("name", "mountPath", "containerPort")
"""Fields that identify the entry of a list, as the merge keys of the Kubernetes API do."""

_ABSENT = object()


def name_objects(made: Iterable[Made]) -> dict[tuple[str, str], Json]:
    """The objects by kind and name, without the operator's own annotations: hashes and times differ each time."""
    return {(each.resource.kind, each.name): _without_bookkeeping(each.manifest) for each in made}


def _without_bookkeeping(manifest: Json) -> Json:
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations")
    if not isinstance(annotations, dict):
        return manifest
    kept = {name: value for name, value in annotations.items() if not name.startswith(ANNOTATION_PREFIX)}
    rest = {name: value for name, value in metadata.items() if name != "annotations"}
    return manifest | {"metadata": rest | ({"annotations": kept} if kept else {})}


def compare(old: Named, new: Named) -> Iterator[str]:
    """The differences, one field a line: `+` only in `new`, `-` only in `old`, `~` changed. Objects with the same
    differences, such as the pods of a role, are one section. Nothing for equal objects."""
    sections: dict[tuple[str, ...], list[str]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        if lines := tuple(_changes(old.get(key), new.get(key))):
            sections.setdefault(lines, []).append("/".join(key))
    for lines, names in sections.items():
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        yield f"{', '.join(map(printable, names[:MAX_NAMES]))}{more}:"
        yield from (f"  {line}" for line in lines)


def _changes(old: Json | None, new: Json | None) -> Iterator[str]:
    if old is None:
        yield "+ the whole object"
    elif new is None:
        yield "- the whole object"
    else:
        yield from _walk("", old, new)


def _walk(path: str, old: Any, new: Any) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _walk_entries(path, old, new, "{}.{}" if path else "{}{}")
    elif isinstance(old, list) and isinstance(new, list) and (key := _key_of([*old, *new])):
        yield from _walk_entries(path, {e[key]: e for e in old}, {e[key]: e for e in new}, "{}[{}]")
    elif old is _ABSENT:
        yield f"+ {printable(path)}: {_show(new)}"
    elif new is _ABSENT:
        yield f"- {printable(path)}: {_show(old)}"
    else:
        yield f"~ {printable(path)}: {_show(old)} -> {_show(new)}"


def _walk_entries(path: str, old: Mapping[Any, Any], new: Mapping[Any, Any], form: str) -> Iterator[str]:
    for name in [*old, *(name for name in new if name not in old)]:
        yield from _walk(form.format(path, name), old.get(name, _ABSENT), new.get(name, _ABSENT))


def _key_of(entries: Sequence[Any]) -> str:
    """The field by which the entries of a list are matched; empty: by position, as a whole."""
    for key in _KEYS:
        if all(isinstance(each, dict) and isinstance(each.get(key), str | int) for each in entries):
            return key
    return ""


def _show(value: Any) -> str:
    return cut(printable(value if isinstance(value, str) else json.dumps(value)), MAX_VALUE)


def as_seen(live: Json, planned: Json, uid: str) -> Json:
    """The fields of a live object that the planned manifest sets. What the API server, its admission plugins and other
    controllers have added is left out. `uid` is that of the live job, which owns the object."""
    restricted: Json = _restrict(live, planned)
    for owner in restricted.get("metadata", {}).get("ownerReferences") or ():
        if owner.get("uid") == uid:
            owner["uid"] = JOB_UID
    return {**restricted, "apiVersion": planned.get("apiVersion"), "kind": planned.get("kind")}


def _restrict(live: Any, planned: Any) -> Any:
    if isinstance(live, dict) and isinstance(planned, dict):
        # The API server does not store empty texts, zeros and false, unless these differ from the default.
        absent = {name: value for name, value in planned.items() if name not in live and value in ("", 0, None)}
        return absent | {name: _restrict(live[name], value) for name, value in planned.items() if name in live}
    if isinstance(live, list) and isinstance(planned, list):
        if key := _key_of([*live, *planned]):
            found = {each[key]: each for each in live}
            return [_restrict(found[each[key]], each) for each in planned if each[key] in found]
        return [*map(_restrict, live, planned), *live[len(planned) :]]
    return live
