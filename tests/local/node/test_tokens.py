"""Tokens of service accounts in the volumes of pods: their content, renewal and errors."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.local.api.support import PODS as POD_PATH
from tests.local.api.support import Api, pod
from tests.local.node.conftest import serve
from tests.local.node.world import World, waiting
from trainop.local.api.serving.server import ApiServer
from trainop.local.node.pods.tokens import PodTokens
from trainop.local.node.pods.volumes import TokenSource, VolumeError
from trainop.runtime.client.client import Client
from trainop.runtime.errors import ApiError
from trainop.runtime.metrics.authorize import TOKEN_REVIEWS
from trainop.runtime.objects.metadata import PODS, SERVICE_ACCOUNTS, Json

AUDIENCE = "example.com/jobs/j"
FOLDER = "/var/run/secrets/kubeflow/trainer"
ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"
ANNOTATION = "example.com/progress"


def volume(*more: Json, **projected: Any) -> Json:
    """A volume with a token for AUDIENCE and fields of the pod."""
    paths = {
        "annotation": f"metadata.annotations['{ANNOTATION}']",
        "label": "metadata.labels['role']",
        **{name: f"metadata.{name}" for name in ("name", "namespace", "uid")},
    }
    items = [{"path": name, "fieldRef": {"fieldPath": path}} for name, path in paths.items()]
    token = {"path": "token", "audience": AUDIENCE, "expirationSeconds": 600}
    sources = [{"serviceAccountToken": token}, {"downwardAPI": {"items": items}}, *more]
    return {"name": "t", "projected": {"sources": sources, **projected}}


def claims_of(token: str) -> Json:
    payload = token.split(".")[1]
    claims: Json = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims


async def start(world: World, script: str, *, source: Json | None = None, name: str = "", **spec: Any) -> str:
    container = {
        "name": "main",
        "image": "none",
        "command": ["sh", "-c", script],
        "env": [{"name": "FOLDER", "value": FOLDER}],
        "volumeMounts": [{"name": "t", "mountPath": FOLDER, "readOnly": True}],
    }
    whole = {"containers": [container], "volumes": [source or volume()], **spec}
    return await world.create(whole, name=name, annotations={ANNOTATION: "10 %"}, labels={"role": "worker"})


async def review(client: Client, token: str, audience: str = AUDIENCE) -> Json:
    answer = await client.create(TOKEN_REVIEWS, {"spec": {"token": token, "audiences": [audience]}})
    status: Json = answer["status"]
    return status


@pytest.mark.asyncio(loop_scope="session")
class TestInPods:
    async def test_a_pod_without_an_account_gets_a_token_that_names_it(self, world: World):
        names = ("token", "annotation", "label", "name", "namespace", "uid")
        name = await start(world, f"for f in {' '.join(names)}; do cat $FOLDER/$f; echo; done; echo end; sleep 600")
        log = await world.log_with(name, "\nend\n")
        found = dict(zip(names, log.splitlines()[:-1], strict=True))
        uid = (await world.running(name))["metadata"]["uid"]
        token = found.pop("token")
        assert found == {"annotation": "10 %", "label": "worker", "name": name, "namespace": "team", "uid": uid}
        status = await review(world.client, token)
        assert status["authenticated"] is True
        assert status["audiences"] == [AUDIENCE]
        assert status["user"]["username"] == "system:serviceaccount:team:default"
        assert status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == [name]
        assert status["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [uid]
        assert not (await review(world.client, token, "another")).get("authenticated")
        await world.delete(name, grace=0)
        await world.gone(name)
        assert (await review(world.client, token))["error"] == (
            "[invalid bearer token, service account token has been invalidated]"
        )

    @pytest.mark.parametrize(
        ("spec", "projected", "mode"),
        [
            ({}, {}, "644"),
            ({}, {"defaultMode": 0o440}, "440"),
            ({"securityContext": {"runAsUser": 1000}}, {}, "600"),
            ({"securityContext": {"runAsUser": 0, "fsGroup": 7}}, {"defaultMode": 0o444}, "640"),
        ],
        ids=["default", "stated", "user", "group"],
    )
    async def test_the_mode_of_a_token(self, world: World, spec: Json, projected: Json, mode: str):
        script = "stat -c %a $FOLDER/token 2>/dev/null || stat -f %Lp $FOLDER/token"
        name = await start(world, script, source=volume(**projected), **spec)
        await world.finish(name)
        assert await world.log(name) == f"{mode}\n"

    async def test_a_changed_annotation_is_seen_by_the_running_container(self, world: World):
        changed = "grep -q '99 %' $FOLDER/annotation && grep -q leader $FOLDER/label"
        name = await start(world, f"until {changed}; do sleep 0.01; done")
        await world.running(name)
        metadata = {"annotations": {ANNOTATION: "99 %"}, "labels": {"role": "leader"}}
        await world.client.patch(PODS, name, "team", {"metadata": metadata})
        assert (await world.finish(name))["status"]["phase"] == "Succeeded"

    async def test_a_missing_account_is_named_until_it_is_there(self, world: World):
        account = f"late-{world.node.network}"
        name = await start(world, "wc -c < $FOLDER/token", serviceAccountName=account)
        (event, *_) = await world.events(name, "FailedMount")
        assert event["message"] == (
            f'MountVolume.SetUp failed for volume "t" : failed to fetch token: serviceaccounts "{account}" not found'
        )
        assert waiting(await world.until(name, lambda pod: bool(waiting(pod)))) == "ContainerCreating"
        await world.make(SERVICE_ACCOUNTS, account)
        assert (await world.finish(name))["status"]["phase"] == "Succeeded"
        assert int(await world.log(name)) > 100

    async def test_a_source_that_the_node_has_not_is_named(self, world: World):
        bundle = {"clusterTrustBundle": {"name": "x", "path": "ca.crt"}}
        name = await start(world, "true", source=volume(bundle))
        (event, *_) = await world.events(name, "FailedMount")
        assert "the source clusterTrustBundle cannot be projected on a local node" in event["message"]
        await world.delete(name, grace=0)


class FastClock:
    """A clock that runs a hundred times as fast as the system's."""

    FACTOR = 100

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._at = datetime.now(UTC)

    def monotonic(self) -> float:
        return (time.monotonic() - self._start) * self.FACTOR

    def now(self) -> datetime:
        return self._at + timedelta(seconds=self.monotonic())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.FACTOR)


@pytest_asyncio.fixture(loop_scope="session", params=["namespaces", "addresses"])
async def hurried(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A node and an API server for which time passes quickly."""
    clock = FastClock()
    async for world in serve(World(tmp_path, request.param, ApiServer(clock=clock), clock)):
        yield world


@pytest.mark.asyncio(loop_scope="session")
async def test_a_running_container_sees_a_new_token_and_never_half_of_one(hurried: World):
    script = """
    old= count=0
    while :; do
        new=$(cat $FOLDER/token) || echo MISSING
        [ -n "$new" ] || echo EMPTY
        if [ "$new" != "$old" ]; then old=$new; count=$((count + 1)); echo "$new"; echo "token $count"; fi
        sleep 0.01
    done
    """
    name = await start(hurried, script)
    log = (await hurried.log_with(name, "token 2\n")).splitlines()
    assert set(log) & {"MISSING", "EMPTY"} == set()
    first, second = log[0], log[2]
    old, new = claims_of(first), claims_of(second)
    assert new["iat"] > old["iat"]
    assert new["jti"] != old["jti"]
    assert new["kubernetes.io"]["pod"] == old["kubernetes.io"]["pod"]


class Refusing:
    """A client whose requests fail if they are told to, and are counted."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.error: Exception | None = None
        self.count = 0

    async def request(self, *arguments: Any, **options: Any) -> Any:
        self.count += 1
        if self.error is not None:
            raise self.error
        return await self._client.request(*arguments, **options)


class Tokens:
    """The tokens of a pod, and the clock that they age by."""

    def __init__(self) -> None:
        self.api = Api()
        self.client = Refusing(Client(self.api.transport))
        self.tokens = PodTokens(self.client, self.api.clock)  # type: ignore[arg-type]  # all that it uses

    async def open(self) -> None:
        self.pod = await self.api.create(POD_PATH, pod())

    async def get(self, seconds: int, audience: str = "job") -> str:
        return await self.tokens.get(self.pod, TokenSource(audience, seconds))


@pytest.fixture
async def tokens() -> Tokens:
    found = Tokens()
    await found.open()
    return found


@pytest.mark.parametrize("seconds", [600, 3600, 3607, 24 * 3600, 30 * 24 * 3600])
async def test_a_token_is_renewed_before_most_of_its_life_is_over(tokens: Tokens, seconds: int):
    first = await tokens.get(seconds)
    limit = min(0.8 * seconds, 24 * 3600)
    await tokens.api.clock.advance(0.94 * limit)
    assert not tokens.tokens.due()
    assert await tokens.get(seconds) == first
    await tokens.api.clock.advance(0.06 * limit - 10)
    assert tokens.tokens.due()
    second = await tokens.get(seconds)
    assert claims_of(second)["iat"] > claims_of(first)["iat"]
    assert not tokens.tokens.due()


async def test_each_audience_and_lifetime_has_one_token(tokens: Tokens):
    found = [await tokens.get(seconds, audience) for audience in ("a", "b", "") for seconds in (600, 700)]
    again = [await tokens.get(seconds, audience) for audience in ("a", "b", "") for seconds in (600, 700)]
    assert found == again
    assert tokens.client.count == 6
    assert [claims_of(token)["aud"] for token in found[::2]] == [
        ["a"],
        ["b"],
        ["https://kubernetes.default.svc.cluster.local"],
    ]


@pytest.mark.parametrize("error", [ConnectionError("lost"), TimeoutError("late"), ApiError(503, "", "overloaded", {})])
async def test_a_token_that_cannot_be_renewed_is_used_until_it_expires(tokens: Tokens, error: Exception):
    first = await tokens.get(600)
    tokens.client.error = error
    await tokens.api.clock.advance(599)
    assert await tokens.get(600) == first
    await tokens.api.clock.advance(2)
    with pytest.raises(type(error)):
        await tokens.get(600)
    tokens.client.error = None
    assert await tokens.get(600) != first


async def test_a_token_that_never_was_is_an_error_of_its_volume(tokens: Tokens):
    await tokens.api("DELETE", ACCOUNT)
    shown = {**tokens.pod, "spec": {**tokens.pod["spec"], "volumes": [volume()]}}
    with pytest.raises(VolumeError, match='volume "t" : failed to fetch token: serviceaccounts "default" not found'):
        await tokens.tokens.of_volumes(shown)
