"""With failure policy Fail and no operator, jobs can still be deleted and released by their controllers. What is judged
at admission is refused then, and is sent to the operator when it runs."""

from __future__ import annotations

import copy
import itertools
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.server.conftest import NUMBERS
from tests.server.kinds import ROWS, KindWorld
from tests.server.process import Operator
from tests.server.webhooks import DIJOBS, DiWebhooks, Webhooks, WebhooksBeside, dijob
from tests.server.world import MERGE, Json, World
from trainop.kinds.dijob.kind import DIJOB
from trainop.programs.schemes import FRAMEWORKS, kinds_with_webhooks

MakeOperator = Callable[..., Operator]
ONE = {"template": {"spec": {"containers": [{"name": "mpi", "image": "none"}]}}}
COUNTER = itertools.count()


class Shape(NamedTuple):
    """A valid job of one kind and version."""

    path: str
    body: Json


def shape_of(world: World, kind: str, version: str) -> Shape:
    if kind == "DIJob":
        return Shape(DIJOBS, dijob("All"))
    path = f"/apis/kubeflow.org/{version}/namespaces/{{namespace}}/{kind.lower()}s"
    if kind in FRAMEWORKS:
        stage = KindWorld(world.api, FRAMEWORKS[kind], world.namespace)
        return Shape(path, stage.body("j", {type_: stage.role(count) for type_, count in ROWS[kind].counts.items()}))
    spec = {"mpiReplicaSpecs": {"Launcher": {"replicas": 1, **ONE}, "Worker": {"replicas": 1, **ONE}}}
    return Shape(path, {"apiVersion": f"kubeflow.org/{version}", "kind": kind, "metadata": {}, "spec": spec})


KINDS = {(each.resource.kind, each.resource.version): Webhooks for each in kinds_with_webhooks()}
ALL = [
    *((*key, place) for key, place in KINDS.items()),
    *((DIJOB.resource.kind, DIJOB.resource.version, place) for place in (DiWebhooks, WebhooksBeside)),
]


@pytest.fixture(scope="module")
def places(
    control_plane: ControlPlane, shared_operator: Operator
) -> Iterator[Callable[[type[Webhooks]], tuple[Webhooks, Callable[[bool], None]]]]:
    """Installs the configurations of one place, and removes them again at the end. The second value switches the policy
    Fail on (configurations installed, and nobody listens on the port that they name) and off."""
    if shared_operator.running:
        shared_operator.end()
    nobody = socket.create_server(("127.0.0.1", 0))
    port = nobody.getsockname()[1]
    nobody.close()
    made: dict[type[Webhooks], Webhooks] = {}

    def use(place: type[Webhooks]) -> tuple[Webhooks, Callable[[bool], None]]:
        if place not in made:
            made[place] = place(World(control_plane.api, f"conditions{next(NUMBERS)}"))
        hooks = made[place]
        return hooks, lambda on: hooks.install(port, "Fail") if on else hooks.remove()

    yield use
    for hooks in made.values():
        hooks.remove()


@pytest.mark.parametrize(("kind", "version", "place"), ALL, ids=lambda value: getattr(value, "__name__", value))
def test_without_an_operator_jobs_can_be_released_and_deleted(
    places: Callable[[type[Webhooks]], tuple[Webhooks, Callable[[bool], None]]],
    kind: str,
    version: str,
    place: type[Webhooks],
):
    hooks, require = places(place)
    world, name = hooks.world, f"j{next(COUNTER)}"
    path, body = shape_of(world, kind, version)
    body = copy.deepcopy(body)
    body["metadata"] = {"name": name, "finalizers": ["example.com/wait"], "annotations": {"a": "b"}}
    require(False)
    world.wait(lambda: world.try_to("POST", path, body).status == 201, "a creation without webhooks")
    stored = world.ask("GET", f"{path}/{name}")
    require(True)
    body["metadata"]["name"] = "other"
    world.wait(lambda: world.try_to("POST", f"{path}?dryRun=All", body).status == 500, "the policy Fail")

    def change(**fields: Json) -> int:
        return hooks.send("PATCH", f"{path}/{name}", fields, MERGE).status

    def metadata(**fields: object) -> int:
        return change(metadata=dict(fields))

    assert change(spec={"runPolicy": {"suspend": True}, "cleanPodPolicy": "None"}) == 500, "what is judged"
    assert metadata(annotations={"trainop.kubeflow.org/service-mode": "leader"}) == 500, "annotations are judged"
    assert metadata(annotations=None) == 500, "their absence, too"
    assert metadata(labels={"x": "y"}) == 200
    assert metadata(finalizers=["example.com/wait", "example.com/more"]) == 200
    assert world.ask("PUT", f"{path}/{name}", world.ask("GET", f"{path}/{name}"))["spec"] == stored["spec"]
    assert hooks.send("PATCH", f"{path}/{name}/status", {"status": {"phase": "x"}}, MERGE).status == 200
    world.ask("DELETE", f"{path}/{name}", {"propagationPolicy": "Foreground"})
    assert metadata(annotations={"left-by": "a controller that says good-bye"}) == 200
    assert metadata(finalizers=None) == 200
    world.wait(lambda: world.try_to("GET", f"{path}/{name}").status == 404, "the end of the job")


def test_conditions_can_be_evaluated_for_the_largest_job(
    places: Callable[[type[Webhooks]], tuple[Webhooks, Callable[[bool], None]]],
):
    """An expression that exceeds the API server's budget is an error, which the policy Fail makes a refusal."""
    hooks, require = places(Webhooks)
    world, name = hooks.world, f"j{next(COUNTER)}"
    path, body = shape_of(world, "PyTorchJob", "v1")
    body["metadata"] = {
        "name": name,
        "finalizers": ["example.com/wait"],
        "annotations": {f"a{number}": "" for number in range(40_000)},  # the API server's limit is 256 KiB
    }
    role = next(iter(body["spec"]["pytorchReplicaSpecs"].values()))
    role["template"]["spec"]["containers"][0]["env"] = [{"name": f"N{n}", "value": "v"} for n in range(25_000)]
    require(False)
    world.wait(lambda: world.try_to("POST", path, body).status == 201, "a creation without webhooks")
    require(True)
    small = {**body, "metadata": {"name": "other"}}
    world.wait(lambda: world.try_to("POST", f"{path}?dryRun=All", small).status == 500, "the policy Fail")
    answer = hooks.send("PATCH", f"{path}/{name}", {"metadata": {"labels": {"x": "y"}}}, MERGE)
    assert answer.status == 200, answer
    changed = hooks.send("PATCH", f"{path}/{name}", {"metadata": {"annotations": {"a39999": "x"}}}, MERGE)
    assert "failed calling webhook" in changed.message, "sent, not failed to be evaluated"
    world.ask("DELETE", f"{path}/{name}")
    answer = hooks.send("PATCH", f"{path}/{name}", {"metadata": {"finalizers": None}}, MERGE)
    assert answer.status == 200, answer


@pytest.mark.parametrize("place", [Webhooks, DiWebhooks], ids=lambda value: value.__name__)
def test_the_operator_changes_nothing_but_the_bundle(
    control_plane: ControlPlane,
    quiet_world: World,
    make_operator: MakeOperator,
    place: type[Webhooks],
    tmp_path: Path,
):
    hooks = place(quiet_world)
    name, *flags = ("di-webhook", f"--webhook-cert-dir={tmp_path}/unmounted") if place is DiWebhooks else ("operator",)
    program = (sys.executable, "-m", "trainop", name)
    operator = make_operator(control_plane.kubeconfig, *flags, environment=hooks.environment, program=program)
    hooks.install(operator.webhook_port)
    before = {path: world_webhooks(hooks, path) for path in hooks.configurations()}
    operator.start()
    hooks.wait_injected()
    after = {path: world_webhooks(hooks, path) for path in before}
    hooks.remove()
    assert all(webhook["clientConfig"].pop("caBundle") for found in after.values() for webhook in found)
    assert after == before


def world_webhooks(hooks: Webhooks, path: str) -> list[Json]:
    found: list[Json] = hooks.world.ask("GET", path)["webhooks"]
    return found
