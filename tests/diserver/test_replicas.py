"""The requests of di-server by the acceptance cases, on the embedded API server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from tests.diserver.world import SETTINGS, Running, World, request, world
from trainop.runtime.objects.metadata import EVENTS, PODS

GPUS = (8, 8, 0, 4)


async def settled(server: Running, here: World, count: int) -> None:
    """Waits until the cache of the server has so many pods."""
    await here.until(lambda: len(server.server.caches.pods.store) == count)


@pytest.mark.case("di-orchestrator-20", "b")
async def test_post_creates_pods_and_get_returns_them():
    async with world() as here, here.di_server() as server:
        await here.job()
        answer = await server.post(request(2, 3))
        assert (answer.status, answer.body["success"], answer.body["code"]) == (200, True, 0)
        assert list(answer.body) == ["success", "code", "message", "data"]
        assert answer.message == "successfully create replicas"
        assert list(answer.data) == ["namespace", "coordinator", "collectors", "learners"]
        assert answer.headers["Content-Type"] == "application/json"
        assert (len(answer.data["collectors"]), len(answer.data["learners"])) == (2, 3)
        names = await here.names()
        assert len(names) == 6
        urls = {f"{name}.default:22270" for name in names if "collector" in name}
        assert set(answer.data["collectors"]) == urls
        await settled(server, here, 6)
        found = await server.get("?namespace=default&coordinator=a-coordinator")
        assert found.message == "successfully get replicas"
        assert {key: sorted(value) for key, value in found.data.items() if key.endswith("s")} == {
            key: sorted(value) for key, value in answer.data.items() if key.endswith("s")
        }
        await here.until_released()


@pytest.mark.case("di-orchestrator-21", "abcd")
async def test_refusals():
    async with world() as here, here.di_server() as server:
        await here.job()
        unknown = await server.post(request(1, coordinator="not-exists"))
        assert (unknown.status, unknown.message) == (404, "pod: default/not-exists not exists in cache")
        assert unknown.body["success"] is False
        assert unknown.body["code"] == 1
        assert unknown.data == {"namespace": "", "coordinator": "", "collectors": None, "learners": None}
        patched = await server.call("PATCH")
        assert (patched.status, patched.message, patched.data) == (501, "PATCH not implemented", None)
        empty = await server.post(b"")
        assert empty.status == 400
        assert empty.message == "failed to decode request body: EOF"
        quantity = await server.post(request(None, {"replicas": 1, "gpus": "abc"}))
        assert quantity.status == 400
        assert quantity.message == (
            "failed to decode request body: quantities must match the regular expression"
            " '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
        assert await here.names() == ["a-coordinator"]


@pytest.mark.case("di-orchestrator-22", "ab")
async def test_parameters():
    async with world() as here, here.di_server() as server:
        await here.job()
        await settled(server, here, 1)
        wrong = await server.get("?foo=1")
        assert (wrong.status, wrong.message, wrong.data) == (400, "request param foo is not supported", None)
        found = await server.get("?NAMESPACE=default")
        assert found.status == 200
        assert found.data == [
            {"namespace": "default", "coordinator": "a-coordinator", "collectors": [], "learners": []}
        ]
        missing = await server.get("?coordinator=a-coordinator")
        assert (missing.status, missing.message) == (400, "request param namespace is required")


@pytest.mark.case("di-orchestrator-23", "ab")
async def test_get_of_all():
    async with world() as here, here.di_server() as server:
        await here.job("a")
        await here.job("b", "other")
        await here.job("c")
        await here.finish("c")
        await here.set_status("c-coordinator", phase="Succeeded")
        await settled(server, here, 3)
        await here.until(lambda: len(server.server.caches.jobs.store) == 3)
        every = await server.get()
        assert [(each["namespace"], each["coordinator"]) for each in every.data] == [
            ("default", "a-coordinator"),
            ("other", "b-coordinator"),
            ("default", "c-coordinator"),
        ]
        assert [each["coordinator"] for each in (await server.get("?namespace=other")).data] == ["b-coordinator"]
        assert len((await server.get("?namespace=")).data) == 3
        nowhere = await server.get("?namespace=nowhere")
        assert (nowhere.status, nowhere.data) == (200, [])


async def test_get_of_one_name():
    async with world() as here, here.di_server() as server:
        await here.job()
        name = (await server.post(request(1))).data["collectors"][0].partition(".")[0]
        found = await server.get(f"?namespace=default&name={name}")
        expected = {"namespace": "default", "coordinator": "a-coordinator", "replicaType": "collector", "name": name}
        assert found.data == expected
        missing = await server.get("?namespace=default&name=nope")
        assert (missing.status, missing.message) == (404, "pod: default/nope not exists in cache")


def ports(pod: Any) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}


def env(pod: Any) -> dict[str, str]:
    return {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}


@pytest.mark.case("di-orchestrator-24", "abcd")
@pytest.mark.parametrize(
    ("replicas", "gpus", "learners", "aggregators", "shares"),
    [(1, 1, 1, 0, []), (1, 2, 0, 1, [2]), (1, 10, 0, 1, [8, 2]), (2, 2, 0, 2, [2, 2])],
)
async def test_learners_over_nodes(replicas: int, gpus: int, learners: int, aggregators: int, shares: list[int]):
    async with world() as here:
        await here.nodes(*GPUS)
        await here.aggregator_config()
        await here.job()
        async with here.di_server() as server:
            answer = await server.post(request(None, {"replicas": replicas, "gpus": str(gpus)}))
            assert answer.status == 200
            assert len(answer.data["learners"]) == replicas
            assert len(await here.pods("learner")) == learners
            assert len(await here.pods("aggregator")) == aggregators
            ddp = await here.pods("ddp-learner")
            numbers = [sum(name.startswith(("di-port", "gpu-port")) for name in ports(pod)) for pod in ddp]
            assert sorted(numbers, reverse=True) == shares
            masters = [pod for pod in ddp if "master-port" in ports(pod)]
            assert [env(pod)["START_RANK"] for pod in masters] == (["0"] if gpus == 10 else [])
            if aggregators:
                assert {url.partition(".")[0] for url in answer.data["learners"]} == set(await here.names("aggregator"))


@pytest.mark.case("di-orchestrator-25", "ab")
@pytest.mark.case("di-orchestrator-26", "bc")
async def test_ddp_learners_of_ten_gpus():
    async with world() as here:
        await here.nodes(*GPUS)
        await here.aggregator_config()
        job = await here.job()
        async with here.di_server() as server:
            body = request(None, {"replicas": 1, "gpus": 10, "cpus": 4, "memory": "16Gi"})
            (aggregator,) = [url.partition(".")[0] for url in (await server.post(body)).data["learners"]]
            master, worker = sorted(await here.pods("ddp-learner"), key=lambda pod: env(pod)["START_RANK"])
            fields = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "START_RANK", "MASTER_ADDR", "MASTER_PORT", "LEARNER_PORT")
            assert [env(master)[name] for name in fields] == ["10", "8", "0", "localhost", "10314", "22271"]
            named = master["metadata"]["name"]
            assert [env(worker)[name] for name in fields] == ["10", "2", "8", named, "10314", "22271"]
            (first,) = await here.pods("aggregator")
            for pod in (master, worker):
                by_job, by_aggregator = pod["metadata"]["ownerReferences"]
                assert (by_job["kind"], by_job["uid"], by_job["controller"]) == ("DIJob", job["metadata"]["uid"], True)
                assert by_aggregator["name"] == aggregator
                assert (by_aggregator["uid"], by_aggregator["controller"]) == (first["metadata"]["uid"], False)
            limits = worker["spec"]["containers"][0]["resources"]["limits"]
            assert limits == {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"}
            await settled(server, here, 4)
            found = await server.get(f"?namespace=default&aggregator={aggregator}")
            assert (found.data["coordinator"], found.data["collectors"]) == (aggregator, [])
            assert sorted(found.data["learners"]) == sorted(
                [f"{named}.default:{22271 + index}" for index in range(8)]
                + [f"{worker['metadata']['name']}.default:{22271 + index}" for index in range(2)]
            )
            found = await server.get("?namespace=default&coordinator=a-coordinator")
            assert found.data["learners"] == [f"{aggregator}.default:22272"]


@pytest.mark.case("di-orchestrator-26", "a")
@pytest.mark.case("di-orchestrator-27", "b")
async def test_a_fraction_of_gpus_is_rounded_up():
    async with world() as here:
        await here.nodes(*GPUS)
        await here.aggregator_config()
        await here.job()
        async with here.di_server() as server:
            answer = await server.post(request(None, {"replicas": 1, "gpus": "1500m"}))
            aggregator = answer.data["learners"][0].partition(".")[0]
            await settled(server, here, 3)
            found = await server.get(f"?namespace=default&aggregator={aggregator}")
            assert [url.rpartition(":")[2] for url in found.data["learners"]] == ["22271", "22272"]


@pytest.mark.case("di-orchestrator-29", "ab")
async def test_without_an_aggregator_config():
    async with world() as here, here.di_server() as server:
        await here.job()
        assert (await server.post(request(None, {"replicas": 1, "gpus": "0"}))).status == 200
        refused = await server.post(request(1, {"replicas": 1, "gpus": 2}))
        assert refused.status == 404
        assert refused.message == "AGConfig: di-system/aggregator-config not exists in cache"
        assert refused.data["coordinator"] == "a-coordinator"
        assert len(await here.names()) == 2


@pytest.mark.case("di-orchestrator-30", "a")
async def test_the_named_aggregator_config():
    async with world() as here, here.di_server(replace(SETTINGS, config_name="other")) as server:
        await here.aggregator_config()
        await here.aggregator_config("other", "chosen")
        await here.job()
        assert (await server.post(request(None, {"replicas": 1, "gpus": 2}))).status == 200
        (pod,) = await here.pods("aggregator")
        assert pod["spec"]["containers"][0]["image"] == "chosen"


@pytest.mark.case("di-orchestrator-31", "ab")
async def test_delete():
    async with world() as here, here.di_server() as server:
        await here.job()
        await server.post(request(3, 1))
        answer = await server.delete(request(1, 1))
        assert (answer.status, answer.message) == (200, "successfully delete replicas")
        assert (len(answer.data["collectors"]), len(answer.data["learners"])) == (1, 1)
        gone = {url.partition(".")[0] for field in ("collectors", "learners") for url in answer.data[field]}
        left = await here.names()
        assert len(left) == 3
        assert not gone & set(left)
        answer = await server.delete(request(5))
        assert answer.status == 200
        assert len(answer.data["collectors"]) == 2
        assert answer.data["learners"] == []
        assert await here.names() == ["a-coordinator"]


@pytest.mark.case("di-orchestrator-32", "a")
async def test_delete_with_aggregators():
    async with world() as here:
        await here.nodes(*GPUS)
        await here.aggregator_config()
        await here.job()
        async with here.di_server() as server:
            assert (await server.post(request(None, {"replicas": 1}))).status == 200
            assert (await server.post(request(None, {"replicas": 2, "gpus": 10}))).status == 200
            assert len(await here.names("ddp-learner")) == 4
            answer = await server.delete(request(None, 2))
            assert len(answer.data["learners"]) == 2
            assert await here.names("learner") == []
            (left,) = await here.names("aggregator")
            owners = {pod["metadata"]["ownerReferences"][1]["name"] for pod in await here.pods("ddp-learner")}
            assert owners == {left}
            assert len(await here.names("ddp-learner")) == 2


async def test_delete_prefers_pods_that_do_not_run_and_then_the_newest():
    async with world() as here, here.di_server() as server:
        await here.job()
        first = (await server.post(request(2))).data["collectors"]
        for url in first:
            await here.set_status(url.partition(".")[0])
        (pending,) = (await server.post(request(1))).data["collectors"]
        assert (await server.delete(request(1))).data["collectors"] == [pending]


@pytest.mark.case("di-orchestrator-33", "ab")
async def test_failed_replicas():
    async with world() as here, here.di_server() as server:
        await here.job()
        made = (await server.post(request(1, 1))).data
        (collector,), (learner,) = ([url.partition(".")[0] for url in made[key]] for key in ("collectors", "learners"))
        body = {**request(), "collectors": [collector, collector], "learners": [learner]}
        answer = await server.failed(body)
        assert (answer.status, answer.message) == (200, "successfully recreate replicas")
        (new_collector,), (new_learner,) = answer.data["collectors"], answer.data["learners"]
        assert new_collector.startswith("a-collector-")
        assert new_learner.startswith("a-learner-")
        names = await here.names()
        assert len(names) == 3
        assert not {collector, learner} & set(names)
        pod = (await here.pods("collector"))[0]
        assert env(pod)["KUBERNETES_POD_NAME"] == pod["metadata"]["name"] == pod["metadata"]["labels"]["pod-name"]
        assert new_collector == f"{pod['metadata']['name']}.default:22270"
        nothing = await server.failed(request())
        assert (nothing.status, nothing.data["collectors"], nothing.data["learners"]) == (200, [], [])


async def ten_gpus(here: World, server: Running) -> str:
    """The name of an aggregator with pods of 8 and 2 GPUs."""
    answer = await server.post(request(None, {"replicas": 1, "gpus": 10}))
    return str(answer.data["learners"][0].partition(".")[0])


@pytest.mark.case("di-orchestrator-34", "ab")
async def test_a_failed_aggregator():
    async with world() as here:
        await here.nodes(*GPUS)
        await here.aggregator_config()
        await here.job()
        async with here.di_server() as server:
            old = await ten_gpus(here, server)
            before = set(await here.names())
            await settled(server, here, 4)
            answer = await server.failed({**request(), "learners": [old]})
            assert answer.status == 200
            (new,) = await here.names("aggregator")
            assert answer.data["learners"] == [f"{new}.default:22272"]
            ddp = await here.pods("ddp-learner")
            assert sorted(env(pod)["LOCAL_WORLD_SIZE"] for pod in ddp) == ["2", "8"]
            assert {pod["metadata"]["ownerReferences"][1]["name"] for pod in ddp} == {new}
            assert before & set(await here.names()) == {"a-coordinator"}


async def test_an_aggregator_without_its_ddp_learners_is_rebuilt_from_its_annotation():
    async with world() as here:
        await here.nodes(*GPUS)
        await here.aggregator_config()
        await here.job()
        async with here.di_server() as server:
            old = await ten_gpus(here, server)
            for name in await here.names("ddp-learner"):
                await here.client.delete(PODS, name, "default", grace_seconds=0)
            await settled(server, here, 2)
            assert (await server.failed({**request(), "learners": [old]})).status == 200
            sizes = [env(pod)["LOCAL_WORLD_SIZE"] for pod in await here.pods("ddp-learner")]
            assert sorted(sizes) == ["2", "8"]


@pytest.mark.case("di-orchestrator-35", "ab")
async def test_a_failed_master_reported_by_its_aggregator():
    async with world() as here:
        await here.nodes(*GPUS)
        await here.aggregator_config()
        await here.job()
        async with here.di_server() as server:
            aggregator = await ten_gpus(here, server)
            await here.set_status(aggregator, podIP="127.0.0.9")
            await settled(server, here, 4)
            master, worker = sorted(await here.pods("ddp-learner"), key=lambda pod: env(pod)["START_RANK"])
            body = {**request(coordinator=aggregator), "learners": [master["metadata"]["name"]]}
            answer = await server.failed(body, address="127.0.0.9")
            assert (answer.status, answer.data["coordinator"]) == (200, aggregator)
            new_master, new_worker = sorted(await here.pods("ddp-learner"), key=lambda pod: env(pod)["START_RANK"])
            assert answer.data["learners"] == [f"{new_master['metadata']['name']}.default:22271"]
            old = {master["metadata"]["name"], worker["metadata"]["name"]}
            assert not old & {new_master["metadata"]["name"], new_worker["metadata"]["name"]}
            assert env(new_worker)["MASTER_ADDR"] == new_master["metadata"]["name"]
            assert env(new_master)["MASTER_ADDR"] == "localhost"


@pytest.mark.case("di-orchestrator-36", "ab")
async def test_a_failed_coordinator_and_the_longer_form_of_a_name():
    async with world() as here, here.di_server() as server:
        await here.job()
        (url,) = (await server.post(request(1))).data["collectors"]
        refused = await server.failed({**request(), "collectors": ["a-coordinator"]})
        assert refused.status == 400
        assert len(await here.names()) == 2
        accepted = await server.failed({**request(), "collectors": [url]})
        assert accepted.status == 200
        short = accepted.data["collectors"][0].partition(":")[0]
        assert (await server.failed({**request(), "collectors": [short]})).status == 200
        assert len(await here.names()) == 2


@pytest.mark.case("di-orchestrator-37", "a")
async def test_an_unknown_failed_replica():
    async with world() as here, here.di_server() as server:
        await here.job()
        (url,) = (await server.post(request(1))).data["collectors"]
        name, before = url.partition(".")[0], await here.names()
        answer = await server.failed({**request(), "collectors": [name, "unknown"]})
        assert (answer.status, answer.message) == (404, "pod: default/unknown not exists in cache")
        assert await here.names() == before


@pytest.mark.case("di-orchestrator-38", "a")
async def test_a_serial_job():
    async with world() as here, here.di_server() as server:
        await here.job(collector=None, learner=None)
        async with aiohttp.ClientSession() as session:
            for body, role in ((request(1), "collector"), (request(None, 1), "learner")):
                async with session.post(f"{server.url}/v1alpha1/replicas", json=body) as response:
                    assert response.status == 400
                    assert (await response.json())["message"] == f"DIJob default/a has no {role} template"
            async with session.get(f"{server.url}/v1alpha1/replicas") as response:
                assert response.status == 200
        assert (await server.post(request(0, 0))).status == 200
        assert await here.names() == ["a-coordinator"]


@pytest.mark.case("di-orchestrator-39", "ab")
async def test_resources_of_a_request():
    containers = [
        {"name": "di-container", "image": "i", "resources": {"limits": {"cpu": "1"}}},
        {"name": "side", "image": "i"},
    ]
    async with world() as here, here.di_server() as server:
        await here.job(collector={"template": {"spec": {"containers": containers}}})
        await server.post(request({"replicas": 1, "cpus": 4, "memory": "1Gi"}))
        (pod,) = await here.pods("collector")
        both = {"cpu": "4", "memory": "1Gi"}
        main, side = pod["spec"]["containers"]
        assert main["resources"] == {"limits": both, "requests": both}
        assert not side.get("resources")
        await server.delete(request(1))
        await server.post(request(1))
        (pod,) = await here.pods("collector")
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1"}


async def test_a_finished_job_gets_no_pods():
    async with world() as here, here.di_server() as server:
        await here.job()
        await here.finish()
        await here.until(lambda: any(job.ended for job in server.server.caches.jobs.store.list()))
        answer = await server.post(request(1))
        assert (answer.status, answer.message) == (400, "DIJob default/a is finished")


async def test_limits_of_a_request():
    async with world() as here:
        await here.nodes(*GPUS)
        await here.job()
        async with here.di_server() as server:
            for body in (request(1001), request(1, {"replicas": 1, "gpus": 10**15}), request(10**18)):
                answer = await server.post(body)
                assert answer.status == 400, answer
                assert "at most 1000 are allowed" in answer.message
            assert (await server.post(request(-5, {"replicas": -1, "gpus": 8}))).status == 200
            assert await here.names() == ["a-coordinator"]


async def test_other_paths_and_methods():
    async with world() as here, here.di_server() as server:
        for path in ("/v1alpha1/replicas/", "/v1alpha1", "/v1alpha1/replicas/failed/x"):
            found = await server.call("GET", path)
            assert (found.status, found.body) == (404, "404 page not found\n")
        assert (await server.call("GET", "/v1alpha1/replicas/failed")).message == "GET not implemented"
        for method in ("GET", "POST"):
            found = await server.call(method, "/healthz")
            assert (found.status, found.body) == (200, "")
        metrics = await server.call("GET", "/metrics")
        assert (
            'trainop_di_server_requests_total{code="501",method="other",path="/v1alpha1/replicas/failed"}'
            in metrics.body
        )
        described = await server.call("GET", "/openapi.json")
        assert set(described.body["paths"]) == {"/v1alpha1/replicas", "/v1alpha1/replicas/failed"}
        page = await server.call("GET", "/")
        assert "openapi.json" in page.body
        assert "src=" not in page.body


# Misspelt fields ------------------------------------------------------------------------------------------------------

DROPPED = "Pods run without fields that the API server does not know: "
MISSPELT = {"spec": {"containers": [{"name": "di-container", "image": "none", "envs": [], "resource": {}}]}}
MEANT = [
    '{}.template.spec.containers[0].envs: unknown field, did you mean "env"?',
    '{}.template.spec.containers[0].resource: unknown field, did you mean "resources"?',
]


async def told_about(here: World, job: Any) -> dict[str, tuple[str, int]]:
    """Message -> type and count of each event of a job about dropped fields."""
    return {
        each["message"]: (each["type"], each.get("count") or 1)
        for each in (await here.client.list(EVENTS, "default")).items
        if (each["reason"], each["involvedObject"]["uid"]) == ("UnknownFields", job["metadata"]["uid"])
    }


async def until_told(here: World, job: Any, wanted: dict[str, tuple[str, int]]) -> None:
    async def told() -> bool:
        return await told_about(here, job) == wanted

    await here.until(told)


async def test_fields_that_pods_lack_are_an_event_of_the_job():
    """Of every template that di-server makes pods of: one event for a request, and a higher count for the next one."""
    async with world() as here, here.di_server() as server:
        await here.nodes(*GPUS)
        await here.aggregator_config(envs=[])
        job = await here.job(collector={"template": MISSPELT}, learner={"template": MISSPELT})
        wanted = {}
        for body, fields in (
            (request(3), [each.format("spec.collector") for each in MEANT]),
            (request(None, {"replicas": 2}), [each.format("spec.learner") for each in MEANT]),
            (
                request(None, {"replicas": 1, "gpus": "2"}),
                [
                    "AggregatorConfig di-system/aggregator-config: " + MEANT[0].format("spec.aggregator"),
                    *(each.format("spec.learner") for each in MEANT),
                ],
            ),
        ):
            message = DROPPED + "; ".join(fields)
            for count in (1, 2):
                answer = await server.post(body)
                assert answer.status == 200, answer
                wanted[message] = ("Warning", count)
                await until_told(here, job, wanted)
                await here.until_released()


async def test_pods_of_correct_templates_are_no_event():
    async with world() as here, here.di_server() as server:
        job = await here.job()
        assert (await server.post(request(2, 1))).status == 200
        await here.until_released()
        assert await told_about(here, job) == {}
