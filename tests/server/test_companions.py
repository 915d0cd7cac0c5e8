"""Autoscalers and shared ConfigMaps on the real API server: server-side apply by UID; objects of others stay."""

from __future__ import annotations

import json

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.server.kinds import KindWorld
from tests.server.process import Operator
from tests.server.world import CORE, MERGE, Json
from trainop.programs.schemes import FRAMEWORKS

HPAS = "/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
METRICS: list[Json] = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "0.5"}}}
]
ELASTIC: Json = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3, "metrics": METRICS}}


def kind_world(kind: str, control_plane: ControlPlane, operator: Operator) -> KindWorld:
    del operator
    return KindWorld(control_plane.api, FRAMEWORKS[kind])


@pytest.mark.case("frameworks-v1-17", "abcd")
def test_an_autoscaler_follows_the_job(control_plane: ControlPlane, operator: Operator):
    stage = kind_world("PyTorchJob", control_plane, operator)

    def autoscaler() -> Json:
        found: Json = stage.try_to("GET", f"{HPAS}/j").body
        return found if found["kind"] == "HorizontalPodAutoscaler" else {}

    job = stage.create("j", {"Worker": 2}, **ELASTIC)
    stage.wait(autoscaler, "the autoscaler")
    made = autoscaler()
    target = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "j"}
    assert made["spec"]["scaleTargetRef"] == target
    assert (made["spec"]["minReplicas"], made["spec"]["maxReplicas"]) == (1, 3)
    # The API server normalizes quantities; the difference must not cause another write.
    assert made["spec"]["metrics"][0]["resource"]["target"]["averageValue"] == "500m"
    owner = made["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("PyTorchJob", job["metadata"]["uid"], True)

    stage.run_pod(*stage.wait_pods("j-worker-0", "j-worker-1"))
    stage.wait_condition("Running")
    assert autoscaler()["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]

    stage.patch_job({"elasticPolicy": {"maxReplicas": 5}})
    stage.wait(lambda: autoscaler()["spec"]["maxReplicas"] == 5, "the new maximum")
    stage.ask("PATCH", f"{HPAS}/j", {"spec": {"maxReplicas": 9}}, MERGE)
    stage.wait(lambda: autoscaler()["spec"]["maxReplicas"] == 5, "what somebody changed to be put right")
    assert autoscaler()["metadata"]["uid"] == made["metadata"]["uid"]
    stage.ask("DELETE", f"{HPAS}/j")
    stage.wait(lambda: autoscaler().get("metadata", {}).get("uid") not in (None, made["metadata"]["uid"]), "a new one")

    stage.patch_job({"runPolicy": {"suspend": True}})
    stage.wait(lambda: not autoscaler(), "the end of the autoscaler")
    stage.patch_job({"runPolicy": {"suspend": False}})
    stage.wait(autoscaler, "the autoscaler after the pause")
    stage.patch_job({"elasticPolicy": {"metrics": []}})
    stage.wait(lambda: not autoscaler(), "the end of the autoscaler")


def test_a_foreign_autoscaler_is_left_alone(control_plane: ControlPlane, operator: Operator):
    stage = kind_world("PyTorchJob", control_plane, operator)
    spec: Json = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "maxReplicas": 7}
    body = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "j"}, "spec": spec}
    theirs = stage.ask("POST", HPAS, body)
    stage.create("j", {"Worker": 1}, **ELASTIC)
    stage.wait_pods("j-worker-0")
    stage.wait(lambda: stage.events("FailedCreateHorizontalPodAutoscaler"), "a warning")
    assert stage.ask("GET", f"{HPAS}/j") == theirs


def test_a_refused_autoscaler_does_not_stop_the_job(control_plane: ControlPlane, operator: Operator):
    stage = kind_world("PyTorchJob", control_plane, operator)
    stage.create("j", {"Worker": 1}, elasticPolicy={"metrics": [{"type": "Nonsense"}]})
    stage.wait_pods("j-worker-0")
    stage.wait(lambda: stage.events("FailedCreateHorizontalPodAutoscaler"), "a warning")
    assert not stage.is_now("Failed")


def test_a_large_cluster_is_a_file(control_plane: ControlPlane, operator: Operator):
    stage = kind_world("TFJob", control_plane, operator)
    name = "a-job-whose-name-is-long-enough-to-need-fewer-pods"
    stage.create(name, {"Worker": 1500})
    path = f"{CORE}/configmaps/{name}-tf-config"
    stage.wait(lambda: stage.try_to("GET", path).status == 200, "the shared file")
    workers = json.loads(stage.ask("GET", path)["data"]["cluster.json"])["worker"]
    assert (len(workers), workers[1499]) == (1500, f"{name}-worker-1499.{stage.namespace}.svc:2222")
    stage.wait(lambda: stage.try_to("GET", f"{CORE}/pods/{name}-worker-0").status == 200, "the first pod")
    pod = stage.ask("GET", f"{CORE}/pods/{name}-worker-0")
    (variable,) = pod["spec"]["containers"][0]["env"]
    assert json.loads(variable["value"])["cluster"] == "/etc/trainop/tf-config/cluster.json"
    assert {volume["name"] for volume in pod["spec"]["volumes"]} >= {"trainop-tf-config"}
    version = stage.ask("GET", path)["metadata"]["resourceVersion"]
    stage.ask("DELETE", f"{stage.jobs}/{name}")
    assert stage.ask("GET", path)["metadata"]["resourceVersion"] == version
