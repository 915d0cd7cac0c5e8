"""The server as a whole: sockets and authentication, restarts, logs, documents."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.local.api.support import DEFINITIONS, PODS, SERVICES, Api, definition, pod, task
from tests.patience import PATIENCE
from trainop.local.api.serving.server import ApiServer

BEARER = {"Authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (BEARER, 200),
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic secret"}, 401),
        ({**BEARER, "Origin": "https://evil.example"}, 403),
        ({**BEARER, "Host": "evil.example:80"}, 403),
        ({**BEARER, "Host": "localhost:80"}, 200),
    ],
)
async def test_accepts_the_token_and_refuses_browsers(headers: dict[str, str], code: int):
    server = ApiServer()
    url = await server.serve(token="secret", tls=False)
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/api/v1/pods", headers=headers) as response:
            assert response.status == code
            body = await response.json()
            assert body["kind"] == ("PodList" if code == 200 else "Status")
    finally:
        await server.close()


async def test_watches_over_tls():
    server = ApiServer()
    url = await server.serve(token="secret")
    assert url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cadata=server.authority.decode())
    try:
        async with (
            aiohttp.ClientSession(url, headers=BEARER) as session,
            session.get("/api/v1/namespaces?watch=1", ssl=context) as response,
        ):
            line = json.loads(await response.content.readline())
            assert (line["type"], line["object"]["metadata"]["name"]) == ("ADDED", "default")
            body = {"metadata": {"name": "later"}}
            async with session.post("/api/v1/namespaces", json=body, ssl=context) as made:
                assert made.status == 201
            names = [json.loads(await response.content.readline())["object"]["metadata"]["name"] for _ in range(4)]
            assert names[-1] == "later"
    finally:
        await server.close()


class Logs:
    """A log source that records its calls."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    async def __call__(self, namespace: str, pod: str, container: str, **options: Any) -> AsyncIterator[bytes]:
        self.asked = {"of": (namespace, pod, container), **options}
        yield b"one\n"
        yield b"two\n"


async def running(api: Api, name: str = "p") -> None:
    """A pod with status Running."""
    await api.create(PODS, pod(name, node="n"))
    state = {"name": "c", "state": {"running": {}}}
    await api.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running", "containerStatuses": [state]}})


async def test_reads_logs_from_the_node():
    logs = Logs()
    api = Api(log_source=logs)
    await running(api)
    answer = await api("GET", f"{PODS}/p/log", tailLines="5", follow="true", sinceSeconds="5", timestamps="true")
    assert (answer.code, answer.headers["content-type"], answer.raw) == (200, "text/plain", b"one\ntwo\n")
    assert logs.asked == {
        "of": ("default", "p", "c"),
        "follow": True,
        "previous": False,
        "tail_lines": 5,
        "since": datetime.fromisoformat("2026-01-02T03:04:00Z"),
        "timestamps": True,
    }
    assert (await api("GET", f"{PODS}/p/log", limitBytes="5")).raw == b"one\nt"


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ({"container": "zz"}, 400, "container zz is not valid for pod p"),
        ({"previous": "true"}, 400, 'previous terminated container "c" in pod "p" not found'),
        (
            {"tailLines": "-1"},
            422,
            'PodLogOptions "p" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0',
        ),
    ],
)
async def test_refuses_logs(query: dict[str, str], code: int, message: str):
    api = Api(log_source=Logs())
    await running(api)
    refused = await api("GET", f"{PODS}/p/log", **query)
    assert (refused.code, refused.json["message"]) == (code, message)


async def test_logs_of_pods_that_have_not_begun():
    api = Api(log_source=Logs())
    await api.create(PODS, pod("free"))
    assert (await api("GET", f"{PODS}/free/log")).code == 204
    await api.create(PODS, pod("bound", node="n"))
    refused = await api("GET", f"{PODS}/bound/log")
    assert refused.json["message"] == 'container "c" in pod "bound" is waiting to start: ContainerCreating'
    two = pod("two", node="n")
    two["spec"]["containers"].append({"name": "d", "image": "i"})
    await api.create(PODS, two)
    several = await api("GET", f"{PODS}/two/log")
    assert several.json["message"] == "a container name must be specified for pod two, choose one of: [c d]"


async def test_discovery_in_one_document():
    api = Api()
    await api.create(DEFINITIONS, definition())
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    answer = await api("GET", "/apis", accept=accept)
    assert answer.headers["content-type"].endswith("as=APIGroupDiscoveryList")
    group = next(item for item in answer.json["items"] if item["metadata"]["name"] == "example.com")
    resource = group["versions"][0]["resources"][0]
    assert (resource["resource"], resource["scope"], resource["shortNames"]) == ("tasks", "Namespaced", ["tk"])
    assert [part["subresource"] for part in resource["subresources"]] == ["status", "scale"]
    core = (await api("GET", "/api", accept=accept)).json["items"][0]
    assert "pods" in [resource["resource"] for resource in core["versions"][0]["resources"]]


async def test_documents_describe_every_kind():
    api = Api()
    await api.create(DEFINITIONS, definition())
    index = (await api("GET", "/openapi/v3")).json["paths"]
    own = (await api("GET", index["apis/example.com/v1"]["serverRelativeURL"])).json
    patch = own["paths"]["/apis/example.com/v1/namespaces/{namespace}/tasks/{name}"]["patch"]
    assert "fieldValidation" in [parameter["name"] for parameter in patch["parameters"]]
    assert own["components"]["schemas"]["com.example.v1.Task"]["properties"]["spec"]["required"] == ["command"]
    core = (await api("GET", "/openapi/v3/api/v1")).json["components"]["schemas"]
    assert "image" in core["io.k8s.api.core.v1.Container"]["properties"]


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/readyz/ping"])
async def test_is_healthy(path: str):
    answer = await Api()("GET", path)
    assert (answer.code, answer.raw) == (200, b"ok")


@pytest.mark.parametrize("path", ["/nope", "/apis/nope.example.com/v1/things", "/apis/batch/v9"])
async def test_unknown_paths_are_answered_in_plain_text(path: str):
    answer = await Api()("GET", path)
    assert (answer.code, answer.raw) == (404, b"404 page not found\n")


async def test_reviews_allow_every_authenticated_user():
    api = Api()
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = await api("POST", path, {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}})
    assert (answer.code, answer.json["status"]) == (201, {"allowed": True})
    unknown = await api("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}})
    assert unknown.json["status"] == {"user": {}, "error": "invalid bearer token"}


async def test_kubectl_feels_at_home(tmp_path: Path, kubectl: str):
    server = ApiServer()
    await server.serve(token="secret")
    config = tmp_path / "config"
    config.write_text(yaml.safe_dump(server.kubeconfig("secret")))
    (tmp_path / "crd.yaml").write_text(yaml.safe_dump(definition()))
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task()))

    def run(*arguments: str) -> str:
        command = [kubectl, "--kubeconfig", str(config), "--cache-dir", str(tmp_path / "cache"), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    table = [
        (["apply", "-f", "crd.yaml"], "customresourcedefinition.apiextensions.k8s.io/tasks.example.com created"),
        (["apply", "-f", "task.yaml"], "task.example.com/t created"),
        (["get", "tk"], "NAME   REPLICAS\nt      1"),
        (["scale", "task", "t", "--replicas", "4"], "task.example.com/t scaled"),
        (["get", "task", "t", "-o", "jsonpath={.spec.replicas}"], "4"),
        (["explain", "task.spec.command"], "FIELD: command <string>"),
        (["label", "task", "t", "a=b"], "task.example.com/t labeled"),
        (["describe", "task", "t"], "Replicas:  4"),
        (["delete", "task", "t"], 'task.example.com "t" deleted'),
    ]
    try:
        for arguments, said in table:
            assert said in await asyncio.to_thread(run, *arguments), arguments
    finally:
        await server.close()


async def test_no_service_gets_the_address_of_the_api_server():
    api = Api(network="10.96.0.0/29")
    for number in range(5):
        spec = {"ports": [{"port": 80}]}
        created = await api.create(
            SERVICES, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"s-{number}"}, "spec": spec}
        )
        assert created["spec"]["clusterIP"] != "10.96.0.1"
