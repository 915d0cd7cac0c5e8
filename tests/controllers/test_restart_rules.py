"""Restart rules of pods: what the operator does by the answers of the API servers of several releases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.controllers.shell import JOBS, Shell, api_error, pytorch_job
from tests.runtime.virtual_time import virtual_time
from trainop.runtime.objects.metadata import PODS, Json, Resource

MODE = {"trainop.kubeflow.org/restart-mode": "in-place"}
AT = "spec.containers[0]"
OWN_WARNING = 'unknown field "spec.containers[0].resource"'
UNKNOWN_ACTION = (
    f'{AT}.restartPolicyRules[0].action: Unsupported value: "RestartAllContainers": supported values: "Restart"'
)
NOT_HERE = f"{AT}.restartPolicy: Forbidden: may not be set for non-init containers"


class Release:
    """An API server: which fields it drops, which warnings it gives, and why it refuses pods with rules."""

    def __init__(self, dropped: tuple[str, ...] = (), refusal: str = "", *, warns: bool = False) -> None:
        self.dropped = dropped
        self.refusal = refusal
        self.warns = warns
        self.complete: list[bool] = []
        """For each create of a pod, whether the whole pod was asked for."""

    def serve(self, shell: Shell, *, misspelt: bool = False) -> None:
        create = shell.client.create

        async def answer(resource: Resource, body: Any, **asked: Any) -> Json:
            if resource != PODS:
                return await create(resource, body, **asked)
            body = json.loads(bytes(body)) if isinstance(body, msgspec.Raw) else body
            self.complete.append(not asked["metadata_only"])
            container = body["spec"]["containers"][0]
            known = {name: value for name, value in container.items() if name not in self.dropped}
            if self.warns:
                for name in container.keys() - known.keys():
                    asked["warned"](f'unknown field "{AT}.{name}"')
            if misspelt:
                asked["warned"](OWN_WARNING)
            body["spec"]["containers"][0] = known
            if self.refusal and known.get("restartPolicy"):
                text = f'Pod "{body["metadata"]["name"]}" is invalid: {self.refusal}'
                raise api_error(422, "Invalid", text)
            made: Json = await create(resource, body, **asked)
            return made

        shell.client.create = answer  # type: ignore[method-assign]


RULES = ("restartPolicy", "restartPolicyRules")
RELEASES: dict[str, Callable[[], Release]] = {
    "1.36": Release,
    "1.35": lambda: Release(refusal=UNKNOWN_ACTION),
    "1.34": lambda: Release(RULES),
    "1.33": lambda: Release(("restartPolicyRules",), NOT_HERE, warns=True),
    "1.27": lambda: Release(RULES, warns=True),
}
OLD = [name for name in RELEASES if name != "1.36"]


def shell_with_job(release: Release, *, misspelt: bool = False, annotated: bool = True) -> Shell:
    shell = Shell()
    job = pytorch_job()
    for each in job["spec"]["pytorchReplicaSpecs"].values():
        each["restartPolicy"] = "OnFailure"
    if annotated:
        job["metadata"]["annotations"] = dict(MODE)
    shell.client.put(JOBS, job)
    release.serve(shell, misspelt=misspelt)
    return shell


def pods(shell: Shell) -> list[Json]:
    return [found["spec"] for (resource, _), found in shell.client.objects.items() if resource == PODS]


def condition(shell: Shell, type_: str = "RestartsInPlace") -> Json:
    found = [each for each in shell.job()["status"]["conditions"] if each["type"] == type_]
    return found[0] if found else {}


@virtual_time
async def test_where_rules_are_served_pods_have_them():
    shell = shell_with_job(release := Release())
    await shell.settle()
    assert len(pods(shell)) == 3
    assert all(spec["containers"][0]["restartPolicyRules"] for spec in pods(shell))
    assert condition(shell)["status"] == "True"
    assert release.complete == [True] * 3
    assert shell.events == []


@pytest.mark.parametrize("name", OLD)
@virtual_time
async def test_where_they_are_not_pods_have_none_and_one_condition_says_it(name: str):
    shell = shell_with_job(release := RELEASES[name]())
    await shell.settle()
    await asyncio.sleep(30)
    await shell.settle()
    assert shell.pods() == ["j-master-0", "j-worker-0", "j-worker-1"]
    assert not any("restartPolicyRules" in spec["containers"][0] for spec in pods(shell))
    assert not any("restartPolicy" in spec["containers"][0] for spec in pods(shell))
    found = condition(shell)
    assert (found["status"], found["reason"]) == ("False", "RestartRulesNotServed")
    assert condition(shell, "TemplateValid") == {}
    assert condition(shell, "Failed") == {}
    assert [(type_, reason) for type_, reason, _ in shell.events] == [("Warning", "RestartRulesNotServed")]
    for pod in shell.pods():
        shell.set_phase(pod, "Running")
    await asyncio.sleep(30)
    await shell.settle()
    assert ("Running", "True") in shell.conditions()
    tried = len(release.complete)
    assert tried == (4 if release.refusal else 3)  # it is asked once, by one pod


@pytest.mark.parametrize("name", RELEASES)
@virtual_time
async def test_fields_of_the_user_are_still_told_apart(name: str):
    shell = shell_with_job(RELEASES[name](), misspelt=True)
    await shell.settle()
    await asyncio.sleep(30)
    await shell.settle()
    text = condition(shell, "TemplateValid")["message"]
    assert "resource" in text
    assert "restartPolicy" not in text


@virtual_time
async def test_a_new_operator_asks_anew():
    """Meanwhile the API server may have been upgraded."""
    shell = shell_with_job(RELEASES["1.35"]())
    await shell.settle()
    again = Shell()
    again.client.objects = {key: found for key, found in shell.client.objects.items() if key[0] != PODS}
    Release().serve(again)
    await again.settle()
    assert all(spec["containers"][0]["restartPolicyRules"] for spec in pods(again))
    assert condition(again)["status"] == "True"


@pytest.mark.parametrize("name", RELEASES)
@virtual_time
async def test_without_the_annotation_no_request_differs(name: str):
    shell = shell_with_job(release := RELEASES[name](), annotated=False)
    await shell.settle()
    assert release.complete == [False] * 3
    assert condition(shell) == {}


@virtual_time
async def test_a_refusal_for_another_reason_fails_the_job_as_ever():
    shell = shell_with_job(Release(refusal="spec.containers[0].image: Required value"))
    await shell.settle()
    assert ("Failed", "True") in shell.conditions()
