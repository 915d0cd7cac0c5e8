"""Whether this machine has what the jobs ask for: what it can never give ends `trainop run` before anything starts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from trainop.engine.placement import capacity
from trainop.engine.pod_resources import Resources, add_multiple, pod_requests
from trainop.engine.seen import Options
from trainop.explain.rehearsal import rehearse
from trainop.explain.requirements import Group, group_pods
from trainop.local.cluster import ClusterOptions
from trainop.local.node.registration import allocatable
from trainop.local.scheduler.filters import Leniency, counted, is_extended, is_shared, requested
from trainop.programs.schemes import all_kinds
from trainop.run.check import Job
from trainop.run.documents import BadInputError, Document
from trainop.runtime import Json


def check_room(jobs: Sequence[Job], options: ClusterOptions, say: Callable[[str], None]) -> None:
    """Raises `BadInputError` for pods that would wait for ever. Says what the pods of all jobs together exceed."""
    folder = options.directory if options.directory and options.directory.is_dir() else Path(tempfile.gettempdir())
    node: Json = {"status": {"allocatable": allocatable(folder, len(options.gpus or ()))}}
    total: Resources = {}
    errors: list[str] = []
    for document, _ in jobs:
        for group in _groups(document):
            errors += [document.complain(line) for line in _refusals(group, node, options.leniency)]
            add_multiple(total, _limited(group.spec, node, options.leniency), group.count)
    if errors:
        raise BadInputError("\n".join(dict.fromkeys(errors)))
    for line in _excess(total, node, options.leniency):
        say(line)


def _groups(document: Document) -> Sequence[Group]:
    """The pods that the operator would create."""
    group = document.api_version.rpartition("/")[0]
    kinds = [
        each for each in all_kinds(Options()) if (each.resource.kind, each.resource.group) == (document.kind, group)
    ]
    return group_pods(document.raw, rehearse(kinds, document.raw, Options(), datetime.now(UTC)))


def _refusals(group: Group, node: Json, leniency: Leniency) -> Iterator[str]:
    asked = pod_requests(group.spec)
    for name, amount in counted(requested(group.spec), node, leniency).items():
        if name in asked and amount > capacity(node, name):
            flag = "--allow-cpu runs it without" if is_extended(name) else "--overcommit runs it all the same"
            has = node["status"]["allocatable"].get(name, "none")
            yield f"{group.path}.containers: a pod asks for {asked[name]} {name}; this machine has {has}. {flag}"


def _limited(spec: Json, node: Json, leniency: Leniency) -> Resources:
    """What the pod requests of what pods wait for or share."""
    limited = counted(requested(spec), node, leniency)
    return {name: each for name, each in pod_requests(spec).items() if name in limited or is_shared(name)}


def _excess(total: Resources, node: Json, leniency: Leniency) -> Iterator[str]:
    """What there is too little of for all pods at the same time."""
    short = {name: each for name, each in sorted(total.items()) if each.amount > capacity(node, name)}
    shared = [name for name in short if leniency.overcommit and is_shared(name)]
    if shared:
        yield f"{_compare(shared, short, node)}: they share it, and --no-overcommit lets them wait as in a cluster"
    awaited = [name for name in short if name not in shared]
    if awaited:
        yield f"{_compare(awaited, short, node)}: some wait until others have ended"


def _compare(names: Sequence[str], asked: Resources, node: Json) -> str:
    wanted = ", ".join(f"{asked[name]} {name}" for name in names)
    there = ", ".join(str(node["status"]["allocatable"].get(name, 0)) for name in names)
    return f"the pods ask for {wanted}; this machine has {there}"
