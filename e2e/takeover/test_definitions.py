"""Our CRDs replace those of the Go operators: no stored field is pruned that either release knows."""

from __future__ import annotations

from typing import Any

from e2e.peers import MPI_OPERATOR
from e2e.takeover.mpi_scenes import VERSIONS
from e2e.takeover.mpi_theatre import MpiTheatre, definition_of
from e2e.takeover.theatre import APPLY, Theatre, crds_of
from tests.conftest import read_crds
from tests.server.world import MERGE, Json, World
from trainop.kinds.mpi.transport import EXEC, SSH

SCALARS = {"integer": 1, "number": 1, "boolean": True, "string": "text"}


def sample(schema: Json) -> Any:
    """A value with every field of an OpenAPI schema."""
    if schema.get("x-kubernetes-int-or-string"):
        return "1"
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("format") == "date-time":
        return "2024-01-01T00:00:00Z"
    if schema.get("type") == "array":
        return [sample(schema["items"])]
    if schema.get("type") == "object":
        inner = schema.get("properties") or {"key": schema.get("additionalProperties") or {"type": "string"}}
        return {name: sample(each) for name, each in inner.items()}
    return schema.get("minimum", SCALARS[schema["type"]])


def lost(before: Any, after: Any, path: str = "") -> list[str]:
    """The paths of values in `before` that `after` has not, or has otherwise."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [line for name, value in before.items() for line in lost(value, after.get(name), f"{path}.{name}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [line for old, new in zip(before, after, strict=True) for line in lost(old, new, f"{path}[]")]
    return [] if before == after else [path]


def full_jobs(peer: str) -> list[tuple[str, Json]]:
    """A job of each kind with every field of the release's schema, and the path of its resource."""
    found = []
    for crd in crds_of(peer):
        names, version = crd["spec"]["names"], crd["spec"]["versions"][0]
        schema = version["schema"]["openAPIV3Schema"]["properties"]
        body = {
            "apiVersion": f"{crd['spec']['group']}/{version['name']}",
            "kind": names["kind"],
            "metadata": {"name": "full"},
            "spec": sample(schema["spec"]),
            "status": sample(schema["status"]),
        }
        root = f"/apis/{body['apiVersion']}/namespaces/{{namespace}}/{names['plural']}"
        found.append((root, body))
    return found


def test_nothing_is_pruned(theatre: Theatre) -> None:
    world = World(theatre.api, "full")
    ours = {crd["spec"]["names"]["kind"]: crd for crd in read_crds()}
    stored: dict[str, Json] = {}
    for root, body in full_jobs(theatre.peer):
        if body["kind"] not in ours:
            continue
        world.ask("POST", root, body)
        path = f"{root}/full"
        stored[path] = world.ask("PATCH", f"{path}/status", {"status": body["status"]}, MERGE)
        assert lost(body["spec"], stored[path]["spec"]) == []
    theatre.install(ours.values())
    for path, before in stored.items():
        world.ask("PATCH", path, {"metadata": {"labels": {"touched": "yes"}}}, MERGE)
        world.ask("PATCH", f"{path}/status", {"status": {"startTime": "2024-01-02T00:00:00Z"}}, MERGE)
        after = world.ask("GET", path)
        before["status"]["startTime"] = "2024-01-02T00:00:00Z"
        assert lost(before["spec"], after["spec"]) == []
        assert lost(before["status"], after["status"]) == []
    theatre.install(crds_of(theatre.peer))  # and back again
    for path, before in stored.items():
        assert lost(before["spec"], world.ask("GET", path)["spec"]) == []


def test_nothing_of_an_mpi_job_is_pruned(mpi_theatre: MpiTheatre) -> None:
    """Read, updated, patched and applied through the version of the other Go operator."""
    world = World(mpi_theatre.api, "full")
    definition = definition_of(MPI_OPERATOR)
    ((root, body),) = full_jobs(MPI_OPERATOR)
    mpi_theatre.install_mpi(definition)
    world.ask("POST", root, body)
    path, other = f"{root}/full", f"{root}/full".replace(VERSIONS[SSH], VERSIONS[EXEC])
    before = world.ask("PATCH", f"{path}/status", {"status": body["status"]}, MERGE)
    assert lost(body["spec"], before["spec"]) == []
    mpi_theatre.install_ours()
    world.ask("PATCH", other, {"metadata": {"labels": {"touched": "yes"}}}, MERGE)
    updated = world.ask("GET", other)
    updated["metadata"]["labels"]["touched"] = "again"
    world.ask("PUT", other, updated)
    applied = {"apiVersion": VERSIONS[EXEC], "kind": "MPIJob", "metadata": {"name": "full", "labels": {"more": "yes"}}}
    world.ask("PATCH", f"{other}?fieldManager=me", applied, APPLY)
    for each in (path, other):
        after = world.ask("GET", each)
        assert lost(before["spec"], after["spec"]) == []
        assert lost(before["status"], after["status"]) == []
