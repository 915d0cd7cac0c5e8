"""`spec.runtimePatches` of a TrainJob: changes of the pod templates of its runtime (trainer
`pkg/apis/trainer/v1alpha1/trainjob_types.go`, RuntimePatch)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainop.engine.fields import Fields, as_object
from trainop.kinds.trainjob.names import NODE
from trainop.kinds.trainjob.runtime import Runtime, only
from trainop.runtime import Json

_BY_NAME = ("volumes", "imagePullSecrets", "schedulingGates")
_REPLACED = ("affinity", "securityContext", "serviceAccountName", "terminationGracePeriodSeconds")
_CONTAINERS = ("containers", "initContainers")


def apply_patches(fields: Fields, runtime: Runtime, patches: object) -> Runtime:
    """The runtime with all patches, in their order. Errors are added to `fields`."""
    for place, raw in enumerate(fields.sequence("spec.runtimePatches", patches)):
        at = f"spec.runtimePatches[{place}].trainingRuntimeSpec"
        given = fields.mapping(f"spec.runtimePatches[{place}]", raw).get("trainingRuntimeSpec")
        runtime = _apply(fields, at, runtime, fields.mapping(at, given))
    return runtime


def _apply(fields: Fields, at: str, runtime: Runtime, patch: Json) -> Runtime:
    only(fields, at, patch, {"template"}, "")
    template = fields.mapping(f"{at}.template", patch.get("template"))
    only(fields, f"{at}.template", template, {"metadata", "spec"}, "")
    metadata = fields.mapping(f"{at}.template.metadata", template.get("metadata"))
    only(fields, f"{at}.template.metadata", metadata, {"labels", "annotations"}, "")
    spec = fields.mapping(f"{at}.template.spec", template.get("spec"))
    only(fields, f"{at}.template.spec", spec, {"replicatedJobs"}, "")
    runtime = replace(
        runtime,
        labels=runtime.labels | fields.mapping(f"{at}.template.metadata.labels", metadata.get("labels")),
        annotations=runtime.annotations
        | fields.mapping(f"{at}.template.metadata.annotations", metadata.get("annotations")),
    )
    at = f"{at}.template.spec.replicatedJobs"
    for place, raw in enumerate(fields.sequence(at, spec.get("replicatedJobs"))):
        runtime = _apply_to_job(fields, f"{at}[{place}]", runtime, fields.mapping(f"{at}[{place}]", raw))
    return runtime


def _apply_to_job(fields: Fields, at: str, runtime: Runtime, patch: Json) -> Runtime:
    name = fields.text(f"{at}.name", patch.get("name"))
    if name not in runtime.jobs:
        fields.unsupported(f"{at}.name", name, tuple(runtime.jobs))
        return runtime
    job = fields.mapping(f"{at}.template", patch.get("template"))
    only(fields, f"{at}.template", job, {"spec"}, "there is no batch Job")
    spec = fields.mapping(f"{at}.template.spec", job.get("spec"))
    only(fields, f"{at}.template.spec", spec, {"template"}, "there is no batch Job")
    at = f"{at}.template.spec.template"
    found = _patch_template(fields, at, runtime.jobs[name].template, fields.mapping(at, spec.get("template")))
    return replace(runtime, jobs={**runtime.jobs, name: replace(runtime.jobs[name], template=found)})


def _patch_template(fields: Fields, at: str, template: Json, patch: Json) -> Json:
    metadata, given = template.get("metadata") or {}, fields.mapping(f"{at}.metadata", patch.get("metadata"))
    only(fields, f"{at}.metadata", given, {"labels", "annotations"}, "")
    added = {
        name: {**(metadata.get(name) or {}), **fields.mapping(f"{at}.metadata.{name}", given.get(name))}
        for name in ("labels", "annotations")
    }
    spec = _patch_pod(fields, f"{at}.spec", template.get("spec") or {}, fields.mapping(f"{at}.spec", patch.get("spec")))
    return {**template, "metadata": {**metadata, **added}, "spec": spec}


def _patch_pod(fields: Fields, at: str, spec: Json, patch: Json) -> Json:
    known = {*_BY_NAME, *_REPLACED, *_CONTAINERS, "nodeSelector", "tolerations"}
    only(fields, at, patch, known, "")
    spec = {**spec, **{name: patch[name] for name in _REPLACED if patch.get(name) is not None}}
    if patch.get("nodeSelector"):
        selector = fields.mapping(f"{at}.nodeSelector", patch["nodeSelector"])
        spec["nodeSelector"] = {**as_object(spec.get("nodeSelector")), **selector}
    if patch.get("tolerations"):
        added = fields.sequence(f"{at}.tolerations", patch["tolerations"])
        spec["tolerations"] = [*_entries(spec.get("tolerations")), *added]
    for name in _BY_NAME:
        if patch.get(name):
            spec[name] = merge_by_name(spec.get(name), fields.sequence(f"{at}.{name}", patch[name]))
    for name in _CONTAINERS:
        for place, raw in enumerate(fields.sequence(f"{at}.{name}", patch.get(name))):
            here = f"{at}.{name}[{place}]"
            spec[name] = _patch_container(fields, here, _entries(spec.get(name)), fields.mapping(here, raw))
    return spec


def _patch_container(fields: Fields, at: str, containers: list[Any], patch: Json) -> list[Any]:
    only(fields, at, patch, {"name", "env", "volumeMounts", "securityContext"}, "")
    name = patch.get("name")
    if not any(isinstance(each, dict) and each.get("name") == name for each in containers):
        fields.invalid(f"{at}.name", name, "the runtime has no container with this name")
        return containers
    if name == NODE and patch.get("env"):
        fields.forbidden(f"{at}.env", "spec.trainer.env has the variables of this container")
    changes = {key: patch[key] for key in ("securityContext",) if patch.get(key) is not None}
    env = fields.sequence(f"{at}.env", patch.get("env"))
    mounts = fields.sequence(f"{at}.volumeMounts", patch.get("volumeMounts"))

    def changed(container: Json) -> Json:
        found = {**container, **changes}
        if env:
            found["env"] = merge_by_name(container.get("env"), env)
        if mounts:
            found["volumeMounts"] = [*_entries(container.get("volumeMounts")), *mounts]
        return found

    return [changed(each) if isinstance(each, dict) and each.get("name") == name else each for each in containers]


def merge_by_name(before: object, added: list[Any]) -> list[Any]:
    """The entries of both lists, of which those of the second replace those of the same name."""
    names = {_name_of(each) for each in added}
    return [*(each for each in _entries(before) if _name_of(each) not in names), *added]


def _entries(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _name_of(entry: object) -> object:
    return entry.get("name") if isinstance(entry, Mapping) else None
