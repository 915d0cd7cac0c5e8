"""Connections and models of kubernetes_asyncio, in its installed release, which is the oracle of models."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes_asyncio import client as library
from kubernetes_asyncio import config as library_config

from tests.patience import PATIENCE
from tests.runtime.racing import race
from tests.runtime.test_tutorial import load
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.local.api.serving.server import ApiServer
from trainop.runtime import (
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    PODS,
    SECRETS,
    Cache,
    Client,
    ConfigError,
    HttpTransport,
    Json,
    Key,
    NotConnectedError,
    OperationResult,
    Operator,
    OwnerError,
    PartialObject,
    Unstructured,
    by_label,
    create_or_patch,
    decode_unstructured,
    set_controller,
    to_json,
    to_model,
)
from trainop.runtime.client.cluster import AuthHeaders
from trainop.runtime.client.library_config import cluster_config
from trainop.runtime.objects.models import MICRO_TIMES
from trainop.testing import TestCluster

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "runtime-kubernetes-asyncio.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "runtime" / "secret_keys.py"


# Models ---------------------------------------------------------------------------------------------------------------

POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "labels": {"a": "b"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "1", "controller": True}],
    },
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "i",
                "command": ["sh", "-c", "true"],
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "resources": {"limits": {"cpu": "500m"}},
                "livenessProbe": {"httpGet": {"port": "web", "path": "/"}},
                "ports": [{"containerPort": 80}],
            }
        ],
        "tolerations": [{"key": "k", "tolerationSeconds": 300}],
    },
    "status": {"phase": "Running", "startTime": "2026-01-02T03:04:06Z"},
}


@asynccontextmanager
async def api_client() -> AsyncIterator[Any]:
    api = library.ApiClient(library.Configuration(host="http://127.0.0.1:1"))
    try:
        yield api
    finally:
        await api.close()


async def by_library(raw: Json, name: str) -> Any:
    async with api_client() as api:
        return api.deserialize(SimpleNamespace(data=json.dumps(raw)), name)


async def test_a_model_is_what_the_library_makes_of_the_same_json():
    made = to_model(library.V1Pod, Unstructured(POD))
    assert isinstance(made, library.V1Pod)
    assert made == await by_library(POD, "V1Pod")
    assert made.metadata.creation_timestamp == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert to_json(made) == POD


def test_every_model_of_the_library_survives_the_way_to_json_and_back():
    """With a value for each attribute, of the type that the class names."""
    members: list[tuple[str, Any]] = inspect.getmembers(library.models, inspect.isclass)
    classes = [each for _, each in members if each.openapi_types]
    assert len(classes) > 500
    for each in classes:
        raw = _example(each, 4)
        made = to_model(each, raw)
        for name, kind in each.openapi_types.items():
            if hasattr(library.models, kind):
                assert isinstance(getattr(made, name), getattr(library.models, kind)), (each, name)
        assert to_json(made) == raw, each


PLAIN: dict[str, Any] = {"str": "x", "int": 1, "bool": True, "float": 0.5, "object": {"a": [1]}}


def _example(model: Any, depth: int) -> Json:
    """An object with all fields of the class, up to that depth."""
    names = model.attribute_map
    return {names[name]: _value(kind, names[name], depth - 1) for name, kind in model.openapi_types.items() if depth}


def _value(kind: str, name: str, depth: int) -> Any:
    if kind == "datetime":
        return f"2026-01-02T03:04:05{'.000006' * (name in MICRO_TIMES)}Z"
    if kind.startswith("list["):
        return [_value(kind[5:-1], name, depth)]
    if kind.startswith("dict("):
        return {"key": _value(kind[5:-1].partition(", ")[2], "key", depth)}
    model = getattr(library.models, kind, None)  # one class is missing in the library
    return PLAIN.get(kind, {"free": 1}) if model is None else _example(model, depth)


def test_fields_with_microseconds_have_six_digits():
    """The API server refuses a `MicroTime` without six digits. The models describe them by the same type as others."""
    lease = library.V1LeaseSpec(acquire_time=datetime(2026, 1, 1, tzinfo=UTC), renew_time=datetime(2026, 1, 1))  # noqa: DTZ001
    assert to_json(lease) == {"acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z"}
    event = library.EventsV1Event(event_time=datetime(2026, 1, 1, microsecond=5, tzinfo=UTC))
    assert to_json(event)["eventTime"] == "2026-01-01T00:00:00.000005Z"


def test_times_have_whole_seconds_and_a_zone():
    at = datetime(2026, 1, 1, 2, 0, 0, 999, tzinfo=timezone(timedelta(hours=2)))
    metadata = library.V1ObjectMeta(creation_timestamp=at, deletion_timestamp=datetime(2026, 1, 1))  # noqa: DTZ001
    times = {"creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert to_json(metadata) == times


def test_a_model_shares_nothing_with_the_cached_object():
    raw = copy.deepcopy(POD) | {"spec": {"containers": [{"name": "a", "resources": {"limits": {"x": "1"}}}]}}
    cached = Unstructured(copy.deepcopy(raw))
    made = to_model(library.V1Pod, cached)
    made.metadata.labels["new"] = "1"
    made.spec.containers[0].resources.limits.clear()
    made.spec.containers.clear()
    schema = to_model(library.V1JSONSchemaProps, {"default": {"a": []}, "properties": {"p": {"example": [1]}}})
    schema.default["a"].append(1)
    assert cached.raw == raw
    again = to_model(library.V1JSONSchemaProps, {"default": {"a": []}, "properties": {"p": {"example": [1]}}})
    assert (again.default, again.properties["p"].example) == ({"a": []}, [1])


@pytest.mark.parametrize(
    ("model", "raw"),
    [(library.V1Container, {"image": "i"}), (library.V1Pod, {"spec": {"containers": None}})],
)
async def test_what_the_library_refuses_is_decoded(model: Any, raw: Json):
    """One object must not be unreadable because the API server sends less than the library wants."""
    with pytest.raises(ValueError, match="must not be `None`"):
        await by_library(raw, model.__name__)
    assert isinstance(to_model(model, raw), model)


def test_unknown_fields_and_values_of_other_types_do_no_harm():
    raw: Json = {"metadata": {"labels": ["no", "dict"], "newer": 1}, "data": "text", "creationTimestamp": "never"}
    made: Any = to_model(library.V1ConfigMap, raw)
    assert (made.data, made.metadata.labels) == ("text", ["no", "dict"])
    assert to_model(library.V1ObjectMeta, {"creationTimestamp": "never"}).creation_timestamp == "never"


def test_a_class_that_is_derived_from_a_model_is_a_model():
    class Mine(library.V1ConfigMap):
        pass

    made = to_model(Mine, {"metadata": {"name": "a"}})
    assert isinstance(made.metadata, library.V1ObjectMeta)
    assert to_json(made) == {"metadata": {"name": "a"}}


def test_what_is_no_model_is_named():
    with pytest.raises(TypeError, match="a class of models, such as V1ConfigMap, not <class 'dict'>"):
        to_model(dict, {})  # type: ignore[type-var]
    with pytest.raises(TypeError, match="PartialObject has no JSON, from which to make V1Pod: use decode_unstructured"):
        to_model(library.V1Pod, PartialObject())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a model, such as V1ConfigMap, not dict"):
        to_json({})  # type: ignore[arg-type]


# Models that are written and read -------------------------------------------------------------------------------------


def config_map(name: str = "a", **data: Any) -> library.V1ConfigMap:
    return library.V1ConfigMap(metadata=library.V1ObjectMeta(name=name, namespace="default"), data=data)


async def test_a_model_is_created_then_patched_then_left_alone():
    client, racing, other = race()
    result, made = await create_or_patch(client, CONFIG_MAPS, config_map(x="1"))
    assert (result, type(made), made.data) == (OperationResult.CREATED, library.V1ConfigMap, {"x": "1"})
    await other.patch(CONFIG_MAPS, "a", "default", {"data": {"theirs": "1"}, "immutable": False})
    result, made = await create_or_patch(client, CONFIG_MAPS, config_map(x="2"))
    assert (result, made.data, made.immutable) == (OperationResult.UPDATED, {"x": "2", "theirs": "1"}, False)
    racing.verbs.clear()
    result, same = await create_or_patch(client, CONFIG_MAPS, config_map(x="2"))
    assert (result, same, racing.verbs) == (OperationResult.UNCHANGED, made, ["GET"])
    _, made = await create_or_patch(client, CONFIG_MAPS, config_map(x=None))
    assert made.data == {"theirs": "1"}


async def test_a_change_gets_json_with_the_fields_that_the_model_lacks():
    client, _, other = race()
    newer = {"metadata": {"name": "a", "namespace": "default", "annotations": {"a": "1"}}}
    await other.create(CONFIG_MAPS, newer)
    seen: list[Json] = []
    await create_or_patch(client, CONFIG_MAPS, config_map(x="1"), seen.append)
    assert (seen[0]["metadata"]["annotations"], seen[0]["data"]) == ({"a": "1"}, {"x": "1"})


async def test_times_that_are_written_are_no_difference():
    client, racing, _ = race()
    lease = library.V1Lease(
        metadata=library.V1ObjectMeta(name="l", namespace="default"),
        spec=library.V1LeaseSpec(holder_identity="h", renew_time=datetime(2026, 1, 1, tzinfo=UTC)),
    )
    result, made = await create_or_patch(client, LEASES, lease)
    assert (result, made.spec.renew_time) == (OperationResult.CREATED, datetime(2026, 1, 1, tzinfo=UTC))
    racing.verbs.clear()
    assert (await create_or_patch(client, LEASES, made))[0] is OperationResult.UNCHANGED
    assert racing.verbs == ["GET"]


@pytest.mark.parametrize("typed_owner", [True, False])
@pytest.mark.parametrize("typed_child", [True, False])
def test_an_owner_and_its_child_may_be_models(typed_owner: bool, typed_child: bool):
    raw: Json = {"metadata": {"name": "s", "namespace": "default", "uid": "u1"}}
    owner = to_model(library.V1Secret, raw) if typed_owner else Unstructured(raw)
    child = config_map(x="1")
    if typed_child:
        made = to_json(set_controller(owner, SECRETS, child))
    else:
        made = set_controller(owner, SECRETS, to_json(child))
    (reference,) = made["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["uid"], reference["controller"]) == ("Secret", "u1", True)
    assert "ownerReferences" not in to_json(child)["metadata"], "the argument is not changed"
    with pytest.raises(OwnerError, match="never stored"):
        set_controller(library.V1Secret(metadata=library.V1ObjectMeta(name="s")), SECRETS, child)


async def test_models_are_read_from_the_cache():
    async with TestCluster() as cluster:
        for name in ("a", "b"):
            await cluster.create(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"l": name}}}
            )
        cache = Cache(cluster.client)
        cache.informer(CONFIG_MAPS, decode_unstructured, indices={"l": by_label("l")}, label_selector="l")
        running = asyncio.create_task(cache.run())
        await cache.wait_synced()
        key = Key("default", "a")
        made = cache.get(CONFIG_MAPS, key, as_=library.V1ConfigMap)
        assert made is not None
        assert made.metadata.labels == {"l": "a"}
        assert cache.get(CONFIG_MAPS, Key("default", "no"), as_=library.V1ConfigMap) is None
        assert {each.metadata.name for each in cache.list(CONFIG_MAPS, as_=library.V1ConfigMap)} == {"a", "b"}
        (found,) = cache.by_index(CONFIG_MAPS, "l", "b", as_=library.V1ConfigMap)
        assert type(found) is library.V1ConfigMap
        assert isinstance(cache.get(CONFIG_MAPS, key), Unstructured)
        running.cancel()
        await asyncio.wait([running])


# Connections ----------------------------------------------------------------------------------------------------------


def configuration(**fields: Any) -> Any:
    made = library.Configuration(host="https://api:6443")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_each_field_of_a_configuration_has_its_place(tmp_path: Path):
    made = cluster_config(
        configuration(
            ssl_ca_cert=str(tmp_path / "ca"),
            cert_file=str(tmp_path / "cert"),
            key_file=str(tmp_path / "key"),
            tls_server_name="other",
            proxy="http://proxy:1",
        )
    )
    assert (made.server, made.ca, made.tls_server_name) == ("https://api:6443", tmp_path / "ca", "other")
    assert (made.client_certificate, made.client_key) == (tmp_path / "cert", tmp_path / "key")
    assert (made.proxy, made.insecure, made.namespace) == ("http://proxy:1", False, "default")
    assert cluster_config(configuration(verify_ssl=False)).insecure
    proxied = cluster_config(configuration(), environ={"HTTPS_PROXY": "http://env:2"})
    assert (proxied.proxy, proxied.ca) == ("http://env:2", None)
    assert cluster_config(made) is made


async def test_the_default_headers_of_a_client_are_sent_except_its_name():
    async with api_client() as api:
        api.set_default_header("Impersonate-User", "ann")
        assert cluster_config(api).headers == (("Impersonate-User", "ann"),)


def test_the_lease_of_a_pod_is_in_its_namespace(tmp_path: Path):
    for name, text in (("ca.crt", "ca"), ("token", "t"), ("namespace", "system\n")):
        (tmp_path / name).write_text(text)
    made = library.Configuration()
    account = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    library_config.incluster_config.InClusterConfigLoader(
        token_filename=str(tmp_path / "token"), cert_filename=str(tmp_path / "ca.crt"), environ=account
    ).load_and_set(made)
    config = cluster_config(made, environ={})
    assert (config.server, config.namespace) == ("https://10.0.0.1:443", "system")


def with_hook(refresh: Callable[[Any], object]) -> Any:
    """The library calls the hook only if there is a token to be replaced."""
    return configuration(refresh_api_key_hook=refresh, api_key={"BearerToken": "Bearer old"})


@virtual_time
async def test_a_token_is_asked_for_again_after_50_seconds_and_a_401():
    tokens = iter(("one", "two", "three"))

    def refresh(of: Any) -> None:
        of.api_key["BearerToken"] = f"Bearer {next(tokens)}"

    clock = VirtualClock()
    credentials = cluster_config(with_hook(refresh), clock=clock).credentials
    assert credentials is not None
    first = await credentials.auth_headers()
    assert first.headers == {"authorization": "Bearer one"}
    assert await credentials.auth_headers() is first
    await clock.sleep(51)
    second = await credentials.auth_headers()
    assert second.headers == {"authorization": "Bearer two"}
    assert credentials.refused(second)
    assert (await credentials.auth_headers()).headers == {"authorization": "Bearer three"}


@virtual_time
async def test_a_hook_may_fail_in_any_way():
    async def refresh(_: Any) -> None:
        raise RuntimeError("no login")

    credentials = cluster_config(with_hook(refresh), clock=VirtualClock()).credentials
    assert credentials is not None
    with pytest.raises(
        NotConnectedError, match=r"https://api:6443: kubernetes_asyncio gives no credentials: .*no login"
    ):
        await credentials.auth_headers()


@virtual_time
async def test_without_credentials_none_are_sent():
    credentials = cluster_config(configuration(), clock=VirtualClock()).credentials
    assert credentials is not None
    assert await credentials.auth_headers() == AuthHeaders({})


def test_what_is_no_connection_is_named():
    with pytest.raises(TypeError, match="a Configuration or ApiClient of kubernetes_asyncio, not str"):
        HttpTransport("https://api")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not SimpleNamespace"):
        Operator("x").run_on(SimpleNamespace(auth_settings=dict))
    with pytest.raises(ConfigError, match="put user and password into proxy"):
        cluster_config(configuration(proxy_headers={"a": "b"}))
    with pytest.raises(ConfigError, match="no-such-file"):
        HttpTransport(configuration(ssl_ca_cert="/no-such-file"))


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[ApiServer, Path]]:
    """An API server on a socket, and the kubeconfig of an administrator."""
    api = ApiServer()
    await api.serve(token="secret")
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(api.kubeconfig("secret")))
    try:
        yield api, kubeconfig
    finally:
        await api.close()


async def check_connections(kubeconfig: Path, namespace: str) -> None:
    """Writes with one library and reads with the other, over the same configuration."""
    made = library.Configuration()
    await library_config.load_kube_config(config_file=str(kubeconfig), client_configuration=made)
    async with library.ApiClient(made) as api:
        for number, source in enumerate((made, api)):
            transport = HttpTransport(source)
            wanted = config_map(f"by-{number}", x="1")
            wanted.metadata.namespace = namespace
            _, written = await create_or_patch(Client(transport), CONFIG_MAPS, wanted)
            found = await library.CoreV1Api(api).read_namespaced_config_map(f"by-{number}", namespace)
            assert found == written
            await transport.close()


async def test_a_configuration_and_a_client_connect(tmp_path: Path):
    async with served(tmp_path) as (_, kubeconfig):
        await check_connections(kubeconfig, "default")


# The page -------------------------------------------------------------------------------------------------------------


def listings() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_listing_of_the_page_is_the_file():
    source = EXAMPLE.read_text(encoding="utf-8")
    assert listings()[0] == source
    numbers = re.findall(r"^(\d)\. ", PAGE, re.MULTILINE)
    assert sorted(re.findall(r"# \((\d)\)$", source, re.MULTILINE)) == numbers


def secret(**data: str) -> Json:
    metadata = {"name": "s", "labels": {"example.com/list-keys": "true"}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}


async def test_the_operator_of_the_page():
    async with TestCluster() as cluster:
        cluster.start(load("secret_keys").operator)
        (made,) = await cluster.create(secret(b="1", a="2"))
        found = await cluster.wait_for(CONFIG_MAPS, "s-keys", until=lambda obj: obj["data"]["keys"] == "a\nb")
        at = datetime.fromisoformat(made["metadata"]["creationTimestamp"])
        assert datetime.fromisoformat(found["data"]["secret-made"]) == at
        await cluster.client.patch(SECRETS, "s", "default", {"data": {"c": "MQ=="}})
        await cluster.wait_for(CONFIG_MAPS, "s-keys", until=lambda obj: obj["data"]["keys"] == "a\nb\nc")

        async def has_event() -> bool:
            events = (await cluster.client.list(EVENTS, "default")).items
            return [(each["reason"], each["message"]) for each in events] == [
                ("KeysChanged", "the list of keys was updated")
            ]

        await cluster.wait_until(has_event)
        await cluster.client.delete(CONFIG_MAPS, "s-keys", "default")
        await cluster.wait_for(CONFIG_MAPS, "s-keys")
        await cluster.client.delete(SECRETS, "s", "default")
        await cluster.wait_gone(CONFIG_MAPS, "s-keys")


async def run_example(kubeconfig: Path, client: Client, namespace: str) -> None:
    """The file as a process: it lists the keys of a Secret and ends with SIGTERM."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        EXAMPLE,
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        await client.create(SECRETS, secret(a="1"), namespace=namespace)
        async with asyncio.timeout(PATIENCE):
            while not (await client.list(CONFIG_MAPS, namespace, label_selector="example.com/list-keys")).items:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 0, said.decode()
        assert b"Traceback" not in said
        assert b"Unclosed" not in said
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_file_of_the_page_runs_with_any_kubeconfig(tmp_path: Path):
    async with served(tmp_path) as (api, kubeconfig):
        await run_example(kubeconfig, Client(api.transport()), "default")


async def test_an_operator_runs_in_a_loop_of_the_program(tmp_path: Path):
    """The second listing of the page."""
    operator = Operator("in-loop", metrics="0", health="0", leader_election=False)
    scope: dict[str, Any] = {"ApiClient": library.ApiClient, "HttpTransport": HttpTransport, "operator": operator}
    exec(listings()[1], scope)  # noqa: S102  # the page
    parts: list[Any] = []
    operator.setup(parts.append)
    async with served(tmp_path) as (_, kubeconfig):
        made = library.Configuration()
        await library_config.load_kube_config(config_file=str(kubeconfig), client_configuration=made)
        async with library.ApiClient(made) as api:
            serving = asyncio.create_task(scope["serve"](api))
            async with asyncio.timeout(PATIENCE):
                while not parts:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            listing = await parts[0].client.list(PODS, "default")
            assert listing.items == []
            parts[0].manager.stop()
            assert await serving == 0


# The import -----------------------------------------------------------------------------------------------------------

RUNNING = """\
import asyncio, sys
from trainop.programs.operator import build
from trainop.programs.schemes import crds
from trainop.programs.settings import Settings
from trainop.runtime import PODS
from trainop.testing import TestCluster

CONTAINER = {"name": "pytorch", "image": "i"}
JOB = {
    "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "j"},
    "spec": {"pytorchReplicaSpecs": {"Master": {"template": {"spec": {"containers": [CONTAINER]}}}}},
}


async def main():
    async with TestCluster(*crds()) as cluster:
        settings = Settings(metrics_bind_address="0", health_probe_bind_address="0")
        cluster.start(build(settings, cluster.transport, signals=False))
        await cluster.create(JOB)
        await cluster.wait_for(PODS, "j-master-0")

asyncio.run(main())
print("kubernetes_asyncio" in sys.modules)
"""


def test_an_operator_that_works_has_not_imported_the_library():
    """37 MiB, which is more than an operator of the Go projects needs for all of its code."""
    done = subprocess.run(
        [sys.executable, "-c", RUNNING],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["False"], done.stderr
