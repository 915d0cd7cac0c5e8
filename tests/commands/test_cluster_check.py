"""`trainop check --context` on the embedded API server: what it asks for, and how often."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainop.commands.cluster_check import MAX_REQUESTS, RESOURCE_QUOTAS, check_cluster
from trainop.commands.connection import Connection
from trainop.commands.plan import plan_jobs
from trainop.engine.seen import Options
from trainop.local.api.serving.server import ApiServer
from trainop.programs.schemes import FRAMEWORKS, crds
from trainop.run.check import find_jobs
from trainop.run.documents import read
from trainop.run.submit import install
from trainop.runtime.client.client import Client
from trainop.runtime.objects.metadata import NODES, Json, Resource

SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s0"}}


def job(name: str = "j", secrets: int = 0) -> dict[str, Any]:
    sources = [{"secretRef": {"name": f"s{number}"}} for number in range(secrets)]
    container = {"name": "pytorch", "image": "i", "envFrom": sources}
    roles = {"Master": {"replicas": 1, "template": {"spec": {"containers": [container]}}}}
    metadata = {"name": name}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata,
        "spec": {"pytorchReplicaSpecs": roles},
    }


async def said(
    folder: Path, *objects: dict[str, Any], installed: bool = True, there: Sequence[tuple[Resource, Json]] = ()
) -> tuple[list[str], int]:
    """The texts of the lines but those about nodes, and the number of requests. `there` is what the cluster has."""
    file = folder / "f.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    documents = read([file])
    server = ApiServer()
    client = Client(server.transport())
    if installed:
        await install(client, crds())
    for resource, each in there:
        await client.create(resource, each)
    count = 0
    send = client.request

    def counted(request: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return send(request, **options)

    client.request = counted  # type: ignore[method-assign]
    jobs = plan_jobs(find_jobs(documents), Options())
    found = await check_cluster(Connection(client, "default", "here"), jobs, documents, None)
    await server.close()
    return [each.text for each in found if "nodes" not in each.text], count


async def test_a_kind_without_a_crd_is_named(tmp_path: Path):
    lines, _ = await said(tmp_path, job(), installed=False)
    assert lines[0] == "kind: the cluster has no CRD for PyTorchJob in kubeflow.org/v1; install it"


async def test_what_the_files_define_need_not_exist(tmp_path: Path):
    lines, _ = await said(tmp_path, SECRET, job(secrets=2))
    assert [line.partition(": ")[2].partition(" does")[0] for line in lines] == ["Secret s1"]


@pytest.mark.parametrize("jobs", [1, 30])
async def test_requests_are_bounded_and_what_is_left_out_is_said(tmp_path: Path, jobs: int):
    lines, count = await said(tmp_path, *(job(f"j{number}", secrets=300) for number in range(jobs)))
    assert count == MAX_REQUESTS
    assert any(f"not checked: Secret s299, as {MAX_REQUESTS} requests were sent" in line for line in lines)


async def test_what_several_jobs_name_is_asked_for_once(tmp_path: Path):
    _, one = await said(tmp_path, job("a", secrets=5))
    _, three = await said(tmp_path, *(job(name, secrets=5) for name in "abc"))
    assert three == one + 2  # the dry runs of the others


def quota(**hard: str) -> tuple[Resource, Json]:
    return RESOURCE_QUOTAS, {"metadata": {"name": "few", "namespace": "default"}, "spec": {"hard": hard}}


def node(cpu: str) -> tuple[Resource, Json]:
    return NODES, {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": cpu, "pods": "110"}}}


def asking(name: str, cpu: str) -> dict[str, Any]:
    found = job(name)
    container = found["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"cpu": cpu}}
    return found


async def test_jobs_of_one_file_need_room_in_a_quota_together(tmp_path: Path):
    lines, _ = await said(tmp_path, job("a"), job("b"), job("c"), there=[quota(pods="2")])
    assert lines == [
        "spec: ResourceQuota few allows 2 pods, 0 are used, jobs before it in the files need 2, and the job needs 1"
    ]


async def test_a_job_that_is_suspended_takes_no_room_from_others(tmp_path: Path):
    waiting = job("a")
    waiting["spec"]["runPolicy"] = {"suspend": True}
    assert (await said(tmp_path, waiting, job("b"), there=[quota(pods="1")]))[0] == []


async def test_quotas_of_other_namespaces_are_not_those_of_the_job(tmp_path: Path):
    other = job("a")
    other["metadata"]["namespace"] = "kube-system"
    assert (await said(tmp_path, other, job("b"), there=[quota(pods="1")]))[0] == []


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ([("a", "2"), ("b", "2")], []),
        ([("a", "3"), ("b", "2"), ("c", "1")], ["b: warning"]),
        ([("a", "5"), ("b", "2")], ["a: error"]),
    ],
    ids=["enough", "together", "alone"],
)
async def test_nodes_need_room_for_all_jobs_of_a_file(tmp_path: Path, jobs: list[tuple[str, str]], expected: list[str]):
    """Jobs that only cannot run at the same time are a warning, said once."""
    file = tmp_path / "f.yaml"
    file.write_text(yaml.safe_dump_all(asking(*each) for each in jobs))
    documents = read([file])
    server = ApiServer()
    client = Client(server.transport())
    await install(client, crds())
    await client.create(*node("4"))
    planned = plan_jobs(find_jobs(documents), Options())
    found = await check_cluster(Connection(client, "default", "here"), planned, documents, None)
    await server.close()
    assert [f"{each.document.key.name}: {each.severity}" for each in found] == expected
    assert all("cpu" in each.text for each in found)


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/*.yaml"), key=str)
ONE_PER_KIND = [
    next(path for path in EXAMPLES if path.parent.name != "broken" and re.search(kind, path.read_text(), re.MULTILINE))
    for kind in (
        *(rf"^kind: {kind}$" for kind in FRAMEWORKS if kind != "MPIJob"),
        r"^apiVersion: kubeflow.org/v1\nkind: MPIJob$",
        r"^apiVersion: kubeflow.org/v2beta1\nkind: MPIJob$",
        r"^kind: DIJob$",
    )
]


@pytest.mark.parametrize("file", ONE_PER_KIND, ids=lambda path: "-".join(path.with_suffix("").parts[-2:]))
async def test_an_example_lacks_nothing_but_nodes(file: Path):
    """Each kind, in the version of its file, passes admission."""
    documents = read([file])
    server = ApiServer()
    client = Client(server.transport())
    await install(client, crds())
    planned = plan_jobs(find_jobs(documents), Options())
    found = await check_cluster(Connection(client, "default", "here"), planned, documents, None)
    await server.close()
    assert [each.text for each in found if not each.text.endswith("the cluster has no nodes")] == []


@pytest.mark.parametrize("file", ONE_PER_KIND, ids=lambda path: "-".join(path.with_suffix("").parts[-2:]))
async def test_what_a_running_job_uses_of_a_quota_is_counted_once(file: Path):
    """Of each kind: all its objects exist and fill the quota. Then one of them is gone, and the quota is still full."""
    documents = [each for each in read([file]) if each.kind.endswith("Job")]
    (planned,) = plan_jobs(find_jobs(documents), Options())
    server = ApiServer()
    client = Client(server.transport())
    await install(client, crds())
    raw = planned.document.raw
    body = {**raw, "metadata": {**raw["metadata"], "namespace": "default"}}
    live = await client.create(planned.resource, body)
    metadata = live["metadata"]
    owner = {"kind": live["kind"], "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    counts: dict[str, int] = {}
    made = {(each.resource, each.name): each.manifest for each in planned.found.made}
    for (resource, _), manifest in made.items():
        owners = [{"apiVersion": live["apiVersion"], **owner}]
        placed = {**manifest["metadata"], "namespace": metadata["namespace"], "ownerReferences": owners}
        await client.create(resource, {**manifest, "metadata": placed})
        key = f"count/{resource.plural}.{resource.group}".rstrip(".")
        counts[key] = counts.get(key, 0) + 1
    with_pods = [key for key, manifest in made.items() if "containers" in str(manifest)]
    counts["pods"] = len(with_pods)
    await client.create(*quota(**{name: str(count) for name, count in counts.items()}))
    stored = await client.get(RESOURCE_QUOTAS, "few", "default")
    stored["status"] = {"used": stored["spec"]["hard"]}
    await client.replace(RESOURCE_QUOTAS, stored, subresource="status")

    async def lines() -> list[str]:
        found = await check_cluster(Connection(client, metadata["namespace"], "here"), [planned], documents, None)
        return [each.text for each in found if "ResourceQuota" in each.text]

    assert await lines() == []
    for resource, name in {key[0]: key for key in made}.values():
        await client.delete(resource, name, metadata["namespace"], grace_seconds=0)
        key = f"count/{resource.plural}.{resource.group}".rstrip(".")
        expected = f"{key}, {counts[key]} are used, and the job needs 1"
        found = await lines()
        assert any(expected in line for line in found), (expected, found)
    await server.close()
