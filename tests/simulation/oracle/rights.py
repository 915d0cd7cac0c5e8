"""What the service accounts of jobs may do, by the rules of RBAC and the Roles and RoleBindings in the store.

The specification: the account of a launcher may read the workers of its own job and execute commands in them, each by
its name, and nothing else. A name belongs to a job only while the job's UID controls the pod that has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tests.simulation.oracle.kinds import Json
from tests.simulation.oracle.mpi import owner_of

ROLES, BINDINGS = "roles.rbac.authorization.k8s.io", "rolebindings.rbac.authorization.k8s.io"
ALLOWED = {("", "pods", "get"), ("", "pods/exec", "create")}
"""API group, resource and verb."""

Objects = Callable[[str], Mapping[Any, Any]]


class Trespass(NamedTuple):
    """Something that an account may do and should not."""

    account: str
    job: str
    """UID of the job for which the right was granted."""
    where: str
    """UID of a pod of others, the name of one that does not exist, or empty."""
    what: str


def trespasses(objects: Objects) -> Iterator[Trespass]:
    """All that accounts may do by the Roles of jobs beyond the specification."""
    roles = {stored.value["metadata"]["name"]: stored.value for stored in objects(ROLES).values()}
    pods = {stored.value["metadata"]["name"]: stored.value for stored in objects("pods").values()}
    for stored in objects(BINDINGS).values():
        role = roles.get(stored.value["roleRef"]["name"])
        kind, job = owner_of(role or {"metadata": {}})
        if role is None or kind != "MPIJob":
            continue
        for subject in stored.value.get("subjects") or ():
            for rule in role.get("rules") or ():
                for where, what in _faults(rule, job, pods):
                    yield Trespass(subject["name"], job, where, what)


def _faults(rule: Json, job: str, pods: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Where and what a rule allows beyond the pods that the job controls."""
    rights = set(itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"]))
    if rights - ALLOWED:
        yield "", f"has the rights {sorted(rights - ALLOWED)}"
    if not rule.get("resourceNames"):
        yield "", f"has the rights {sorted(rights)} for every object"
    for name in rule.get("resourceNames") or ():
        pod = pods.get(name)
        if pod is None:
            yield name, f"has rights for {name}, which does not exist"
        elif owner_of(pod)[1] != job:
            yield pod["metadata"]["uid"], f"has rights for {name}, which the job does not control"


class RightsWatch:
    """Since when there has been which trespass."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._since: dict[Trespass, float] = {}

    def look(self, now: float, window: float) -> Iterator[Trespass]:
        """The trespasses that have lasted for longer than `window` seconds, each of them once."""
        found = set(trespasses(self._objects))
        for each in found - self._since.keys():
            self._since[each] = now
        for each in self._since.keys() - found:
            del self._since[each]
        for each, since in self._since.items():
            if now - since > window:
                self._since[each] = float("inf")
                yield each
