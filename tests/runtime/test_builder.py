"""Operators built with `Operator`, end to end on the embedded API server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from structlog.testing import capture_logs

from tests.patience import PATIENCE
from tests.runtime.scripted import ScriptedTransport
from trainop.local.api.serving.server import ApiServer
from trainop.runtime import (
    CONFIG_MAPS,
    PODS,
    SECRETS,
    CacheError,
    Changed,
    Client,
    Context,
    Json,
    Key,
    LeaderElection,
    Matching,
    Metadata,
    Metrics,
    NotLeaderError,
    Operator,
    OperatorParts,
    Result,
    Store,
    TerminalError,
    Timing,
    Unstructured,
    Watch,
    create_or_patch,
    decode_unstructured,
    set_controller,
)
from trainop.runtime.objects.metadata import EVENTS, LEASES
from trainop.testing import TestCluster

ROOT = Path(__file__).parent.parent.parent
FAST = LeaderElection(timing=Timing(3.0, 2.0, 0.1))
MINE = Watch(CONFIG_MAPS, decode_unstructured, label_selector="app=mine")


def config_map(name: str, **data: str) -> Json:
    metadata = {"name": name, "namespace": "default", "labels": {"app": "mine"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def copier(**options: Any) -> Operator:
    """An operator that copies the data of each ConfigMap into a Secret of the same name."""
    operator = Operator("copier", **options)

    @operator.for_(MINE).owns(SECRETS).reconcile
    async def copy(ctx: Context, source: Unstructured) -> None:
        metadata = {"name": source.metadata.name, "namespace": source.metadata.namespace}
        secret = {"metadata": metadata, "stringData": source.raw["data"]}
        if ctx.store(SECRETS).get(source.metadata.key) is None:
            await create_or_patch(ctx.client, SECRETS, set_controller(source, CONFIG_MAPS, secret))
            ctx.event(source, "Normal", "Copied", "made the secret")

    return operator


async def test_an_operator_lists_in_pages():
    """Each list is a request for a page, none a watch that begins with the objects."""
    transport = ScriptedTransport(*[ConnectionError("reset")] * 2)
    manager = copier(leader_election=False).build(transport, serve=False, signals=False)
    running = asyncio.create_task(manager.run())
    await asyncio.wait_for(transport.exhausted(), PATIENCE)
    manager.stop()
    await running
    assert {verb for verb in transport.verbs() if verb != "GET"} == {"list"}


async def test_an_object_and_its_children_trigger_the_function_which_reads_writes_and_records():
    async with TestCluster() as cluster:
        cluster.start(copier())
        await cluster.create(config_map("a", x="1"))
        secret = await cluster.wait_for(SECRETS, "a")
        assert secret["metadata"]["ownerReferences"][0]["kind"] == "ConfigMap"
        assert secret["metadata"]["managedFields"][0]["manager"] == "copier"
        await cluster.client.delete(SECRETS, "a", "default")
        await cluster.wait_for(SECRETS, "a", until=lambda obj: obj["metadata"]["uid"] != secret["metadata"]["uid"])

        async def recorded() -> list[Json]:
            events = (await cluster.client.list(EVENTS, "default")).items
            return [event for event in events if event["reason"] == "Copied"]

        event = (await cluster.wait_until(recorded))[0]
        assert (event["involvedObject"]["kind"], event["source"]["component"]) == ("ConfigMap", "configmap")
        await cluster.client.delete(CONFIG_MAPS, "a", "default")
        await cluster.wait_gone(SECRETS, "a")


async def test_a_failing_function_is_retried_without_affecting_other_objects():
    calls: list[tuple[str, str]] = []
    operator = Operator("failing")

    @operator.for_(MINE).reconcile
    async def work(ctx: Context, obj: Unstructured) -> Result:
        calls.append((obj.metadata.name, obj.raw["data"]["x"]))
        if obj.metadata.name == "bug" and calls.count(("bug", "1")) < 3:
            raise RuntimeError("a bug")
        if obj.metadata.name == "final" and obj.raw["data"]["x"] == "1":
            raise TerminalError("never again")
        await create_or_patch(ctx.client, SECRETS, {"metadata": {"name": obj.metadata.name, "namespace": "default"}})
        return Result()

    metrics = Metrics()
    with capture_logs() as logs:
        async with TestCluster() as cluster:
            cluster.start(operator, metrics=metrics)
            await cluster.create(config_map("final", x="1"), config_map("bug", x="1"), config_map("fine", x="1"))
            for name in ("fine", "bug"):
                await cluster.wait_for(SECRETS, name)
            await cluster.client.patch(CONFIG_MAPS, "final", "default", {"data": {"x": "2"}})
            await cluster.wait_for(SECRETS, "final")
    assert (calls.count(("bug", "1")), calls.count(("final", "1"))) == (3, 1)
    count = metrics.registry.get_sample_value
    assert count("controller_runtime_reconcile_panics_total", {"controller": "configmap"}) == 2
    assert count("controller_runtime_terminal_reconcile_errors_total", {"controller": "configmap"}) == 1
    assert [entry["error"] for entry in logs if entry["log_level"] == "error"].count("RuntimeError: a bug") == 2


async def test_one_replica_leads_and_the_other_takes_over_when_it_stops():
    operator = copier(leader_election=FAST)
    clients: list[Client] = []
    operator.setup(lambda parts: clients.append(parts.client))
    async with TestCluster() as cluster:
        first = cluster.start(operator, namespace="default")
        lease = await cluster.wait_for(LEASES, "copier", until=lambda obj: obj["spec"]["holderIdentity"])
        second = cluster.start(operator, namespace="default")
        await cluster.create(config_map("a", x="1"))
        await cluster.wait_for(SECRETS, "a")
        with pytest.raises(NotLeaderError):
            await clients[1].create(SECRETS, {"metadata": {"name": "b", "namespace": "default"}})
        assert await cluster.stop(first) == 0
        with pytest.raises(NotLeaderError):
            await clients[0].create(SECRETS, {"metadata": {"name": "b", "namespace": "default"}})
        await cluster.create(config_map("c", x="1"))
        await cluster.wait_for(SECRETS, "c")
        after = await cluster.client.get(LEASES, "copier", "default")
        assert after["spec"]["holderIdentity"] not in ("", lease["spec"]["holderIdentity"])
        assert await cluster.stop(second) == 0


async def test_a_leader_that_loses_its_lease_ends_with_1_and_writes_nothing_more():
    operator, clients = copier(leader_election=FAST), list[Client]()
    operator.setup(lambda parts: clients.append(parts.client))
    async with TestCluster() as cluster:
        manager = cluster.start(operator)
        await cluster.wait_for(LEASES, "copier", until=lambda obj: obj["spec"]["holderIdentity"])
        await cluster.client.patch(LEASES, "copier", "default", {"spec": {"holderIdentity": "another"}})
        running = cluster._running.pop(manager)
        async with asyncio.timeout(PATIENCE):
            assert await running == 1
        with pytest.raises(NotLeaderError):
            await clients[0].create(SECRETS, {"metadata": {"name": "b", "namespace": "default"}})


async def test_without_election_there_is_no_lease():
    async with TestCluster() as cluster:
        cluster.start(copier(leader_election=False))
        await cluster.create(config_map("a", x="1"))
        await cluster.wait_for(SECRETS, "a")
        assert (await cluster.client.list(LEASES)).items == []


class Named(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = {}


NAMED = Watch(CONFIG_MAPS, msgspec.json.Decoder(Named).decode, label_selector="app=mine")


async def test_two_controllers_of_one_operator_with_a_typed_kind_a_mapped_kind_and_a_key():
    operator = Operator("two")
    seen: list[tuple[str, str]] = []

    def users(ctx: Context, secret: Unstructured) -> Iterator[Key]:
        store: Store[Named] = ctx.store(NAMED)
        return (obj.metadata.key for obj in store.list() if obj.data.get("secret") == secret.metadata.name)

    @operator.for_(NAMED, Changed(lambda obj: obj.data), name="users").watches(SECRETS, users).reconcile
    async def use(ctx: Context, obj: Named) -> None:
        seen.append(("use", obj.data["secret"]))

    @operator.for_(SECRETS).reads(PODS).reconcile_key
    async def note(ctx: Context, key: Key) -> None:
        seen.append(("there" if ctx.store(SECRETS).get(key) else "gone", key.name))
        with pytest.raises(CacheError, match="configmaps"):
            ctx.store(CONFIG_MAPS)
        assert len(ctx.store(PODS)) == 0

    async def found(what: tuple[str, str]) -> bool:
        return what in seen

    async with TestCluster() as cluster:
        cluster.start(operator)
        await cluster.create(config_map("a", secret="s"))
        await cluster.wait_until(lambda: found(("use", "s")))
        seen.clear()
        await cluster.client.create(SECRETS, {"metadata": {"name": "s", "namespace": "default"}})
        await cluster.wait_until(lambda: found(("use", "s")))
        await cluster.wait_until(lambda: found(("there", "s")))
        await cluster.client.delete(SECRETS, "s", "default")
        await cluster.wait_until(lambda: found(("gone", "s")))


async def test_a_finalizer_is_added_before_the_function_is_called_and_removed_after_clean_up():
    operator = Operator("buckets")
    outside: dict[str, bool] = {}
    history: list[str] = []

    async def clean_up(_ctx: Context, obj: Unstructured) -> Result | None:
        if obj.metadata.name in outside:
            history.append("delete")
            del outside[obj.metadata.name]
            return Result(requeue_after=0.01)  # deleting the external resource takes a while
        history.append("gone")
        return None

    @operator.for_(MINE).finalizes("example.com/bucket", clean_up).reconcile
    async def make(_ctx: Context, obj: Unstructured) -> None:
        assert obj.metadata.finalizers == ("example.com/bucket",)
        assert not obj.metadata.terminating
        history.append("make")
        outside[obj.metadata.name] = True

    async def made() -> bool:
        return bool(outside)

    async with TestCluster() as cluster:
        cluster.start(operator)
        await cluster.create(config_map("a"))
        await cluster.wait_until(made)
        await cluster.client.delete(CONFIG_MAPS, "a", "default")
        await cluster.wait_gone(CONFIG_MAPS, "a")
    assert history[0] == "make"
    assert history[-2:] == ["delete", "gone"]


async def test_a_deletion_is_cleaned_up_although_all_predicates_reject_it():
    """A ConfigMap has no generation, and this one no longer matches."""
    operator, made, cleaned = Operator("picky"), list[str](), list[str]()
    generation, matches = (
        Changed(lambda obj: obj.metadata.generation),
        Matching(lambda obj: obj.raw["data"]["x"] == "1"),
    )

    async def clean_up(_ctx: Context, obj: Unstructured) -> None:
        cleaned.append(obj.metadata.name)

    @operator.for_(MINE, generation, matches).finalizes("example.com/picky", clean_up).reconcile
    async def make(_ctx: Context, obj: Unstructured) -> None:
        made.append(obj.metadata.name)

    async with TestCluster(config_map("other", x="2"), config_map("a", x="1")) as cluster:
        cluster.start(operator)
        await cluster.wait_for(CONFIG_MAPS, "a", until=lambda obj: obj["metadata"]["finalizers"])
        await cluster.client.patch(CONFIG_MAPS, "a", "default", {"data": {"x": "2"}})
        await cluster.client.delete(CONFIG_MAPS, "a", "default")
        await cluster.wait_gone(CONFIG_MAPS, "a")
        other = await cluster.client.get(CONFIG_MAPS, "other", "default")
        assert "finalizers" not in other["metadata"], "an object that never matched is left alone"
    assert set(cleaned) == {"a"}
    assert set(made) <= {"a"}


async def test_a_function_that_mutates_the_cache_fails_the_test_of_a_user():
    operator, mutated = Operator("mutating"), asyncio.Event()

    @operator.for_(MINE).reconcile
    async def mutate(_ctx: Context, obj: Unstructured) -> None:
        obj.raw["data"]["x"] = "mine"
        mutated.set()

    async def scenario() -> None:
        async with TestCluster(config_map("a", x="1")) as cluster:
            cluster.start(operator)
            await mutated.wait()
            await cluster.client.patch(CONFIG_MAPS, "a", "default", {"data": {"y": "1"}})
            await cluster.wait_for(SECRETS, "never")

    with capture_logs() as logs, pytest.raises(AssertionError, match="ended"):
        await scenario()
    assert "MutationError: default/a was mutated" in str(logs)


async def test_a_wait_that_times_out_shows_the_object():
    async with TestCluster(config_map("a", x="1")) as cluster:
        with pytest.raises(AssertionError, match=r'(?s)configmaps a is not as expected: .*"x": "1"') as caught:
            await cluster.wait_for(CONFIG_MAPS, "a", until=lambda obj: obj["data"]["missing"], timeout=0.1)
        assert "after 0.1 s" in str(caught.value)
        with pytest.raises(AssertionError, match="it does not exist"):
            await cluster.wait_for(CONFIG_MAPS, "b", timeout=0.1)
        with pytest.raises(AssertionError, match="still exists"):
            await cluster.wait_gone(CONFIG_MAPS, "a", timeout=0.1)
        with pytest.raises(LookupError, match="no Nothing of v1"):
            await cluster.create({"apiVersion": "v1", "kind": "Nothing", "metadata": {"name": "a"}})


def test_mistakes_of_a_declaration_are_errors_at_the_start():
    with pytest.raises(ValueError, match="bind address"):
        Operator("bad", metrics="8080")
    operator = Operator("incomplete")
    operator.for_(CONFIG_MAPS)
    with pytest.raises(ValueError, match="controller configmap has no reconcile function"):
        operator.build(ApiServer().transport())


async def test_metrics_and_health_are_served_and_setup_adds_to_them():
    ports: list[int] = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    operator = copier(metrics=f"127.0.0.1:{ports[0]}", health=f"127.0.0.1:{ports[1]}", leader_election=False)

    @operator.setup
    def add_check(parts: OperatorParts) -> None:
        parts.manager.ready.add("mine", lambda: None)

    async with TestCluster() as cluster, aiohttp.ClientSession() as session:
        cluster.start(operator, serve=True)

        async def ready() -> str:
            try:
                async with session.get(f"http://127.0.0.1:{ports[1]}/readyz?verbose") as answer:
                    return await answer.text() if answer.status == 200 else ""
            except aiohttp.ClientConnectionError:
                return ""

        text = await cluster.wait_until(ready)
        assert "[+]mine ok" in text
        assert "[+]cache ok" in text
        async with session.get(f"http://127.0.0.1:{ports[0]}/metrics") as answer:
            assert 'controller_runtime_max_concurrent_reconciles{controller="configmap"} 1' in await answer.text()


PROGRAM = """
import sys
from trainop.runtime import CONFIG_MAPS, SECRETS, Context, Operator, Unstructured

operator = Operator("short", metrics="0", health="0")

@operator.for_(CONFIG_MAPS).reconcile
async def reconcile(ctx: Context, obj: Unstructured) -> None:
    name = {"name": obj.metadata.name, "namespace": obj.metadata.namespace}
    await ctx.client.create(SECRETS, {"metadata": name})

sys.exit(operator.run())
"""


async def _run_program(kubeconfig: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(PROGRAM),
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def test_a_program_of_a_dozen_lines_runs_on_a_kubeconfig_until_a_signal(tmp_path: Path):
    api = ApiServer()
    await api.serve(token="secret")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(api.kubeconfig("secret", namespace="kube-system")))
    client = Client(api.transport())
    await client.create(CONFIG_MAPS, config_map("a"))
    process = await _run_program(kubeconfig)
    try:
        async with asyncio.timeout(PATIENCE):
            while not (await client.list(SECRETS)).items:  # noqa: ASYNC110  # the cluster is asked, as a user would
                await asyncio.sleep(0.02)
        lease = await client.get(LEASES, "short", "kube-system")
        assert lease["spec"]["holderIdentity"], "it leads, with a lease in the namespace of the kubeconfig"
        process.send_signal(signal.SIGTERM)
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 0, said.decode()
        assert b"Unclosed" not in said
        assert not (await client.get(LEASES, "short", "kube-system"))["spec"]["holderIdentity"], (
            "the lease was released"
        )
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await api.close()


async def test_a_program_without_a_cluster_says_so_in_one_line(tmp_path: Path):
    process = await _run_program(tmp_path / "missing")
    said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert (process.returncode, said.count(b"\n")) == (1, 1), said.decode()
    assert b"no such file" in said
