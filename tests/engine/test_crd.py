"""The CRD of a kind: compatibility with clients of upstream's CRD, validation rules, and its size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from trainop.engine.framework import Framework
from trainop.engine.schema.crd import crd
from trainop.kinds.pytorch import PYTORCH
from trainop.local.api.printing.table import columns_of_crd
from trainop.local.api.schema.crd_schema import Schema
from trainop.programs.schemes import FRAMEWORKS

KINDS = pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=FRAMEWORKS)


def version(framework: Framework) -> Any:
    return crd(framework)["spec"]["versions"][0]


def schema(framework: Framework = PYTORCH) -> Schema:
    return Schema(version(framework)["schema"]["openAPIV3Schema"])


def places(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every place of a schema with its path."""
    yield path, schema
    for name, member in (schema.get("properties") or {}).items():
        yield from places(member, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from places(schema[name], f"{path}[]")


@KINDS
def test_names(framework: Framework):
    definition = crd(framework)
    spec, resource = definition["spec"], framework.resource
    assert definition["metadata"] == {"name": f"{resource.plural}.kubeflow.org"}
    assert (spec["group"], spec["scope"]) == ("kubeflow.org", "Namespaced")
    names = {"kind": framework.kind, "listKind": f"{framework.kind}List", "plural": resource.plural}
    assert spec["names"] == {**names, "singular": framework.kind.lower()}
    assert [(v["name"], v["served"], v["storage"]) for v in spec["versions"]] == [("v1", True, True)]


@KINDS
def test_columns_show_the_newest_condition_and_the_age(framework: Framework):
    columns = [(c["name"], c["type"], c["jsonPath"]) for c in version(framework)["additionalPrinterColumns"]]
    state = ("State", "string", ".status.conditions[-1:].type")
    assert columns[:2] == [state, ("Age", "date", ".metadata.creationTimestamp")]
    assert [
        column["name"] for column in version(framework)["additionalPrinterColumns"][2:] if column["priority"] == 1
    ] == [
        "Progress %",
        "ETA",
    ]
    assert [column.name for column in columns_of_crd(version(framework))][:3] == ["Name", "State", "Age"]


@KINDS
def test_subresources(framework: Framework):
    assert set(version(framework)["subresources"]) == ({"status", "scale"} if framework.scale else {"status"})


def test_scaling_a_pytorchjob_means_its_workers():
    assert version(PYTORCH)["subresources"]["scale"] == {
        "specReplicasPath": ".spec.pytorchReplicaSpecs.Worker.replicas",
        "statusReplicasPath": ".status.replicaStatuses.Worker.active",
        "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
    }


def test_a_kind_without_scale_and_with_one_type_of_replicas():
    plain = replace(PYTORCH, scale=False, roles={"Worker": PYTORCH.roles["Worker"]}, spec_fields={})
    assert version(plain)["subresources"] == {"status": {}}
    spec = version(plain)["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert set(spec["properties"]) == {"pytorchReplicaSpecs", "runPolicy"}
    assert spec["properties"]["pytorchReplicaSpecs"]["description"].endswith("Types are Worker.")


@KINDS
def test_plain_kubectl_apply_can_store_it_in_its_annotation(framework: Framework):
    assert len(json.dumps(crd(framework))) < 64 * 1024  # the limit is 256 KiB


@KINDS
def test_no_field_is_bounded_that_upstream_leaves_unbounded(framework: Framework):
    patterned = "spec.runPolicy.schedulingPolicy.minResources[]"
    bounds = {"enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "oneOf", "allOf", "not"}
    for path, place in places(version(framework)["schema"]["openAPIV3Schema"]):
        assert not bounds & place.keys(), path
        if "pattern" in place:
            assert path.strip(".") == patterned or path.endswith((".limits[]", ".requests[]")), path


@KINDS
def test_every_field_has_a_description(framework: Framework):
    untold = [
        path
        for path, place in places(version(framework)["schema"]["openAPIV3Schema"])
        if "description" not in place and path != ".metadata" and not path.endswith("[]")
    ]
    assert untold == []


def job(**spec: Any) -> dict[str, Any]:
    replicas = {"Worker": {"template": {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}}}
    head = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "j"}}
    return {**head, "spec": {"pytorchReplicaSpecs": replicas, **spec}}


def complaints(new: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    return [str(error) for error in schema().validate(new, old)]


def test_the_replica_map_is_required():
    assert complaints({**job(), "spec": {}})[0] == "spec.pytorchReplicaSpecs: Required value"
    broken = job(pytorchReplicaSpecs={"Master": {"template": {"spec": {}}}})
    assert complaints(broken)[0] == "spec.pytorchReplicaSpecs.Master.template.spec.containers: Required value"


def test_conditions_name_type_and_status():
    reported = complaints({**job(), "status": {"conditions": [{"reason": "R"}]}})
    assert reported[:2] == ["status.conditions[0].type: Required value", "status.conditions[0].status: Required value"]


def test_suspend_is_false_by_default_where_there_is_a_run_policy():
    assert schema().default(job(runPolicy={}))["spec"]["runPolicy"] == {"suspend": False}
    assert "runPolicy" not in schema().default(job())["spec"]


def test_a_queue_is_immutable_but_may_come_and_go():
    def queued(**policy: Any) -> dict[str, Any]:
        return job(runPolicy={"schedulingPolicy": policy})

    reported = complaints(queued(queue="b"), queued(queue="a"))
    field, message = "spec.runPolicy.schedulingPolicy.queue", "spec.runPolicy.schedulingPolicy.queue is immutable"
    assert reported == [f'{field}: Invalid value: "string": {message}']
    assert complaints(queued(queue="a"), queued(queue="a")) == []
    assert complaints(queued(queue="a"), queued()) == []
    assert complaints(queued(), queued(queue="a")) == []
    assert complaints(queued(queue="a")) == []


def test_fields_that_only_pytorch_jobs_have():
    given = job(
        nprocPerNode="2",
        elasticPolicy={
            "minReplicas": 1,
            "maxReplicas": 3,
            "rdzvBackend": "any",
            "rdzvPort": 1,
            "rdzvHost": "h",
            "rdzvId": "i",
            "rdzvConf": [{"key": "k", "value": "v"}],
            "standalone": True,
            "nProcPerNode": 2,
            "maxRestarts": 3,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}],
        },
    )
    pruned, unknown = schema().prune(given)
    assert (pruned, unknown) == (given, [])
    assert schema().validate(given) == []
    assert complaints(job(nprocPerNode=2))[0].startswith('spec.nprocPerNode: Invalid value: "integer"')


def test_unknown_fields_are_pruned_outside_of_templates_and_kept_inside():
    template = {
        "metadata": {"labels": {"a": "b"}, "creationTimestamp": None, "bogus": 1},
        "spec": {
            "containers": [
                {"name": "pytorch", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}, "ports": [{"x": 1}]}
            ],
            "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["h"]}],
            "volumes": [{"name": "v", "csi": {"driver": "d"}}],
        },
    }
    given = job(pytorchReplicaSpecs={"Worker": {"replicas": 2, "bogus": 1, "template": template}}, bogus=1)
    pruned, unknown = schema().prune(given)
    worker = "spec.pytorchReplicaSpecs.Worker"
    in_metadata = [f"{worker}.template.metadata.bogus", f"{worker}.template.metadata.creationTimestamp"]
    assert unknown == ["spec.bogus", f"{worker}.bogus", *in_metadata]
    assert pruned["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"] == template["spec"]
    assert schema().validate(schema().default(pruned)) == []


@pytest.mark.parametrize(
    "spec",
    [
        {"runPolicy": {"cleanPodPolicy": "Whatever", "backoffLimit": -1, "ttlSecondsAfterFinished": -1}},
        {"runPolicy": {"activeDeadlineSeconds": 2**40, "managedBy": "x", "schedulingPolicy": {"minAvailable": -1}}},
        {"runPolicy": {"schedulingPolicy": {"minResources": {"cpu": 1, "memory": "2Gi", "x.y/gpu": "1"}}}},
        {"pytorchReplicaSpecs": {"Unknown": {"replicas": -1, "restartPolicy": "Sometimes"}}},
        {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": []}}}}},
        {"pytorchReplicaSpecs": {}},
    ],
)
def test_what_upstream_stores_is_accepted(spec: dict[str, Any]):
    assert complaints(job(**spec)) == []


def test_containers_may_have_owners_one_by_one():
    pod_spec = (
        schema().shape.member("spec").member("pytorchReplicaSpecs").member("Worker").member("template").member("spec")
    )
    assert pod_spec.member("containers").keys == ("name",)
    assert pod_spec.member("initContainers").keys == ("name",)
