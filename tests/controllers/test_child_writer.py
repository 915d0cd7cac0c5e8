"""Each write of a companion: to whose object it goes, with which precondition, and what follows from its answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.controllers.shell import JOBS, Call, Shell, api_error, pytorch_job
from tests.engine.builders import apply, create_once
from tests.runtime.virtual_time import virtual_time
from trainop.controllers.outcome import MAX_REFUSALS, Outcome, Refused
from trainop.engine.actions import LOOK_AGAIN, Action, Content, Ensure, Patch, Remove
from trainop.kinds.mpi.transport import LAUNCHER_JOBS
from trainop.runtime.client.client import PatchKind
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import (
    CONFIG_MAPS,
    PODS,
    SECRETS,
    SERVICES,
    Json,
    Key,
    Metadata,
    Resource,
    Unstructured,
)
from trainop.runtime.objects.metadata import HORIZONTAL_POD_AUTOSCALERS as HPAS

X = Key("ns", "x")
LABELS = {"a": "b"}
MANIFEST: Json = {"metadata": {"name": "x", "namespace": "ns", "labels": LABELS}}
OURS = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "j", "uid": "job-uid", "controller": True}
OWNERS = {
    "nobody": [],
    "another job": [OURS | {"uid": "other"}],
    "not the controller": [OURS | {"controller": False}],
}


def shell_with_job() -> Shell:
    shell = Shell()
    shell.client.put(JOBS, pytorch_job())
    return shell


def existing(shell: Shell, resource: Resource, owners: list[Json] | None = None, **content: Any) -> Json:
    """An object of the name `x`, by default ours."""
    metadata = {"name": "x", "namespace": "ns", "ownerReferences": [OURS] if owners is None else owners}
    return shell.client.put(resource, {"metadata": metadata, **content})


async def carry_out(shell: Shell, *actions: Action, begun: bool = False) -> Outcome:
    outcome: Outcome = await shell.reconciler._applier.carry_out(Unstructured(shell.job()), actions, begun=begun)
    return outcome


def writes(shell: Shell) -> list[tuple[str, str]]:
    return [(call.verb, call.name) for call in shell.client.calls if call.verb not in ("get", "list")]


LATER = Patch(HPAS, "later", "u", {})
"""An action after the one that is tested."""


def makers(resource: Resource) -> dict[str, Action]:
    return {
        "apply": apply(resource, MANIFEST),
        "post": apply(resource, MANIFEST, posted=True),
        "once": create_once(resource, MANIFEST),
        "once, posted": create_once(resource, MANIFEST, posted=True),
    }


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("how", makers(CONFIG_MAPS))
@virtual_time
async def test_an_object_of_another_is_never_written_and_pods_wait(how: str, owner: str) -> None:
    shell = shell_with_job()
    theirs = existing(shell, CONFIG_MAPS, OWNERS[owner], data={"mine": "1"})
    outcome = await carry_out(shell, makers(CONFIG_MAPS)[how], LATER)
    assert shell.client.objects[CONFIG_MAPS, X] == theirs
    assert shell.events.of("FailedCreateConfigMap") == [
        "Error creating: ConfigMap x already exists and does not belong to PyTorchJob j"
    ]
    assert (outcome.halted, outcome.requeue_after) == (True, 30)
    assert ("patch merge", "later") not in writes(shell)


@pytest.mark.parametrize("how", makers(CONFIG_MAPS))
@virtual_time
async def test_an_object_of_the_job_is_completed_by_its_uid(how: str) -> None:
    shell = shell_with_job()
    ours = existing(shell, CONFIG_MAPS, data={"a": "1"})
    outcome = await carry_out(shell, makers(CONFIG_MAPS)[how])
    assert outcome.undisturbed
    found = shell.client.objects[CONFIG_MAPS, X]
    assert (found["metadata"]["uid"], found["data"]) == (ours["metadata"]["uid"], {"a": "1"})
    assert found["metadata"]["labels"] == LABELS
    *_, last = shell.client.calls
    assert last.body["metadata"]["uid"] == ours["metadata"]["uid"]


@pytest.mark.parametrize(("uid", "forced"), [("", False), ("u1", True)])
@virtual_time
async def test_fields_are_taken_from_others_only_in_an_object_that_was_seen(uid: str, forced: bool) -> None:
    shell = shell_with_job()
    if uid:
        shell.client.put(CONFIG_MAPS, MANIFEST | {"metadata": MANIFEST["metadata"] | {"uid": uid}})
    patch, given = shell.client.patch, []

    async def spy(*args: Any, **kwargs: Any) -> Json:
        given.append(kwargs)
        return await patch(*args, **kwargs)

    shell.client.patch = spy  # type: ignore[method-assign]  # spies
    await carry_out(shell, apply(CONFIG_MAPS, MANIFEST, uid))
    assert [(each["kind"], each["force"]) for each in given] == [(PatchKind.APPLY, forced)]


@virtual_time
async def test_what_has_its_labels_is_not_written_again() -> None:
    shell = shell_with_job()
    existing(shell, SECRETS)
    shell.client.objects[SECRETS, X]["metadata"]["labels"] = LABELS | {"more": "1"}
    assert (await carry_out(shell, create_once(SECRETS, MANIFEST, Content(dict, is_valid=lambda _: True)))).undisturbed
    assert writes(shell) == []


@pytest.mark.parametrize(("there", "valid"), [(True, True), (True, False), (False, False)])
@virtual_time
async def test_content_is_filled_only_where_it_is_unusable_and_not_on_the_loop(there: bool, valid: bool) -> None:
    shell, threads = shell_with_job(), set()
    if there:
        existing(shell, SECRETS, data={"key": "old"})

    def fill() -> Json:
        threads.add(threading.current_thread())
        return {"data": {"key": "new"}}

    await carry_out(shell, create_once(SECRETS, MANIFEST, Content(fill, is_valid=lambda _: valid)))
    assert shell.client.objects[SECRETS, X]["data"] == {"key": "old" if valid else "new"}
    assert threading.main_thread() not in threads
    assert len(threads) == (not valid)


@pytest.mark.parametrize("own", [True, False])
@virtual_time
async def test_content_that_this_process_has_made_is_trusted_before_the_caches_show_what_needs_it(own: bool) -> None:
    """The pods may exist although the answers to their creation were lost: they would have the old key."""
    shell, keys = shell_with_job(), iter(("first", "second"))
    content = Content(lambda: {"data": {"key": next(keys)}}, is_valid=lambda _: True, is_trusted=False)
    made = create_once(SECRETS, MANIFEST | {"metadata": MANIFEST["metadata"] | {"ownerReferences": [OURS]}}, content)
    if own:
        await carry_out(shell, made)
    else:
        existing(shell, SECRETS, data={"key": "planted"})
        next(keys)
    await carry_out(shell, made)
    assert shell.client.objects[SECRETS, X]["data"] == {"key": "first" if own else "second"}


@pytest.mark.parametrize("gone", [True, False])
@virtual_time
async def test_a_patch_is_for_one_object_and_holds_up_the_next(gone: bool) -> None:
    """Of a name that has another object by now, nothing is changed."""
    shell = shell_with_job()
    if not gone:
        existing(shell, HPAS)
    outcome = await carry_out(shell, Patch(HPAS, "x", "old-uid", {"spec": {"a": 1}}), LATER)
    assert (outcome.halted, outcome.requeue_after) == (True, 1)
    assert [name for _, name in writes(shell)] == ["x"]
    assert shell.client.calls[-1].body == {"spec": {"a": 1}, "metadata": {"uid": "old-uid"}}
    assert gone or "spec" not in shell.client.objects[HPAS, X]


@pytest.mark.parametrize("before", ["get", "patch merge"])
@pytest.mark.parametrize("posted", [True, False])
@virtual_time
async def test_what_is_deleted_while_it_is_looked_at_is_made_anew_at_once(posted: bool, before: str) -> None:
    """Pods wait for the Secret of their job, and the next look at it is half a minute away."""
    shell = shell_with_job()
    existing(shell, SECRETS, data={"key": "old"})

    def delete(call: Call) -> None:
        if call.verb == before:
            shell.client.objects.pop((SECRETS, X), None)

    shell.client.faults.append(delete)
    content = Content(lambda: {"data": {"key": "new"}}, is_valid=lambda _: True)
    outcome = await carry_out(shell, create_once(SECRETS, MANIFEST, content, posted=posted))
    assert (shell.client.objects[SECRETS, X]["data"], outcome.undisturbed) == ({"key": "new"}, True)
    assert len(shell.events) == 0


def awaited(shell: Shell, resource: Resource) -> bool:
    """Whether the next pass waits until the caches show the object."""
    return not shell.reconciler._states.expectations.satisfied("job-uid", lambda *_: None)


@pytest.mark.parametrize("resource", [SERVICES, HPAS, CONFIG_MAPS])
@virtual_time
async def test_only_what_the_caches_will_show_is_waited_for(resource: Resource) -> None:
    shell = shell_with_job()
    await carry_out(shell, apply(resource, MANIFEST, posted=True))
    assert awaited(shell, resource) == (resource != CONFIG_MAPS)


@pytest.mark.parametrize("labelled", [True, False])
@virtual_time
async def test_a_patch_that_labels_an_object_is_waited_for(labelled: bool) -> None:
    shell = shell_with_job()
    uid = existing(shell, HPAS)["metadata"]["uid"]
    body = {"metadata": {"labels": LABELS}} if labelled else {"spec": {"a": 1}}
    await carry_out(shell, Patch(HPAS, "x", uid, body))
    assert awaited(shell, HPAS) == labelled


HELD = Refused("ConfigMap", "x", "Invalid")
INVALID, MISSING, BROKEN = api_error(422, "Invalid"), api_error(404, "NotFound"), api_error(500, "InternalError")
QUOTA = api_error(403, "Forbidden", 'configmaps "x" is forbidden: exceeded quota: q')
NO_RIGHT = api_error(403, "Forbidden", 'User "o" cannot create resource "configmaps"')


def is_retried(outcome: Outcome, error: ApiError) -> bool:
    """As an error of the pass, after which nothing that needs the object is done."""
    return (outcome.errors, outcome.halted, outcome.blocked, outcome.refused) == ([error], True, False, None)


@pytest.mark.parametrize(
    ("error", "essential", "expected"),
    [
        (INVALID, True, lambda outcome: outcome.refused == "Invalid"),
        (
            INVALID,
            False,
            lambda outcome: (outcome.refused, outcome.errors, outcome.refused_children) == (None, [], [HELD]),
        ),
        (MISSING, True, lambda outcome: outcome.refused_children == [HELD._replace(message="NotFound")]),
        (BROKEN, True, lambda outcome: outcome.errors == [BROKEN] and outcome.halted),
        (QUOTA, True, lambda outcome: is_retried(outcome, QUOTA)),
        (NO_RIGHT, True, lambda outcome: is_retried(outcome, NO_RIGHT)),
        (BROKEN, False, lambda outcome: outcome.errors == [BROKEN] and not outcome.halted),
        (api_error(409, "Conflict"), True, lambda outcome: outcome.requeue_after == 1 and not outcome.errors),
    ],
)
@virtual_time
async def test_what_follows_from_an_error(
    error: ApiError, essential: bool, expected: Callable[[Outcome], bool]
) -> None:
    shell = shell_with_job()
    shell.client.fail("create", CONFIG_MAPS, error)
    outcome = await carry_out(shell, apply(CONFIG_MAPS, MANIFEST, posted=True, essential=essential))
    assert expected(outcome), outcome


@pytest.mark.parametrize("template", ["", "spec.template"])
@virtual_time
async def test_only_manifests_without_a_users_template_have_the_operators_own_fields(template: str) -> None:
    """In a template, a user may have misspelt a field."""
    shell = shell_with_job()
    create, given = shell.client.create, []

    async def spy(*args: Any, **kwargs: Any) -> Json:
        given.append(kwargs["own_fields"])
        return await create(*args, **kwargs)

    shell.client.create = spy  # type: ignore[method-assign]  # spies
    await carry_out(shell, create_once(CONFIG_MAPS, MANIFEST, posted=True, template=template))
    await carry_out(shell, apply(SECRETS, MANIFEST, posted=True))
    assert given == [not template, True]


def post(resource: Resource, name: str = "x") -> Ensure:
    """The action that creates a pod or service."""
    body = {"metadata": {"name": name, "namespace": "ns", "ownerReferences": [OURS]}}
    return Ensure(resource, name, lambda: json.dumps(body).encode())


PREDECESSOR = OURS | {"uid": "former"}


@pytest.mark.parametrize("resource", [PODS, SERVICES])
@pytest.mark.parametrize(("owner", "said"), [(PREDECESSOR, 0), (OURS | {"name": "other", "uid": "other"}, 1)])
@virtual_time
async def test_what_an_earlier_job_of_the_name_has_left_is_waited_for_without_a_word(
    resource: Resource, owner: Json, said: int
) -> None:
    """The garbage collector is about to delete it; what anybody else has is named in a Warning."""
    shell = shell_with_job()
    theirs = existing(shell, resource, [owner])
    outcome = await carry_out(shell, post(resource), begun=True)
    assert shell.client.objects[resource, X] == theirs
    assert (len(shell.events), bool(outcome.taken)) == (said, bool(said))
    assert outcome.requeue_after == LOOK_AGAIN
    assert outcome.obstacle[0] == f"{resource.kind} x cannot be created"


@pytest.mark.parametrize(("resource", "propagation"), [(PODS, None), (SERVICES, None), (LAUNCHER_JOBS, "Background")])
@virtual_time
async def test_dependents_of_what_is_deleted_go_with_it(resource: Resource, propagation: str | None) -> None:
    """The default of batch Jobs is to orphan their pods."""
    shell = shell_with_job()
    uid = existing(shell, resource)["metadata"]["uid"]
    delete, given = shell.client.delete, []

    async def spy(*args: Any, **kwargs: Any) -> None:
        given.append(kwargs["propagation"])
        await delete(*args, **kwargs)

    shell.client.delete = spy  # type: ignore[method-assign]  # spies
    await carry_out(shell, Remove(resource, "x", uid))
    assert given == [propagation]


@pytest.mark.parametrize(("owner", "kept"), [(OURS, True), (PREDECESSOR, False)])
@virtual_time
async def test_a_service_stays_while_the_job_has_a_pod_of_its_name(owner: Json, kept: bool) -> None:
    """Which the caches need not show yet."""
    shell = shell_with_job()
    uid = existing(shell, SERVICES)["metadata"]["uid"]
    existing(shell, PODS, [owner])
    outcome = await carry_out(shell, Remove(SERVICES, "x", uid, unless_pod=True))
    assert ((SERVICES, X) in shell.client.objects) == kept
    assert outcome.requeue_after == (LOOK_AGAIN if kept else None)


@virtual_time
async def test_only_refusals_in_a_row_end_a_pass() -> None:
    """Else a large job with a few pods that a policy refuses would get its others a few at a time."""
    shell = shell_with_job()
    names = [f"x-{number}" for number in range(20)]
    for number, name in enumerate(names):
        if number % MAX_REFUSALS:
            shell.client.fail("create", PODS, INVALID, name=name)
    outcome = await carry_out(shell, *(post(PODS, name) for name in names), begun=True)
    assert shell.client.names("create", PODS) == names
    assert len(outcome.refused_children) == 15


@virtual_time
async def test_a_patch_made_from_an_older_version_changes_nothing() -> None:
    shell = shell_with_job()
    found = existing(shell, HPAS)["metadata"]
    shell.client.put(HPAS, shell.client.objects[HPAS, X])
    outcome = await carry_out(
        shell, Patch(HPAS, "x", found["uid"], {"spec": {"a": 1}}, version=found["resourceVersion"])
    )
    assert "spec" not in shell.client.objects[HPAS, X]
    assert outcome.requeue_after == 1


@pytest.mark.parametrize(
    ("error", "waits"),
    [(None, True), (api_error(404, "NotFound"), True), (api_error(409, "Conflict"), True), (BROKEN, False)],
    ids=["deleted", "gone", "replaced", "failed"],
)
@virtual_time
async def test_the_caches_are_awaited_unless_a_deletion_failed(error: ApiError | None, waits: bool) -> None:
    """An object that is gone already may still be in them."""
    shell = shell_with_job()
    uid = existing(shell, PODS)["metadata"]["uid"]
    if error:
        shell.client.fail("delete", PODS, error)
    outcome = await carry_out(shell, Remove(PODS, "x", uid))
    seen = Metadata(name="x", namespace="ns", uid=uid)
    assert shell.reconciler._states.expectations.satisfied("job-uid", lambda *_: seen) != waits
    assert bool(outcome.errors) != waits


@pytest.mark.parametrize("fails", [True, False])
@virtual_time
async def test_the_caches_are_not_awaited_after_a_failed_creation(fails: bool) -> None:
    shell = shell_with_job()
    if fails:
        shell.client.fail("create", PODS, BROKEN)
    await carry_out(shell, post(PODS))
    assert awaited(shell, PODS) != fails


@virtual_time
async def test_content_that_was_replaced_is_not_replaced_again() -> None:
    """Else the key of pods that were created meanwhile would change under them."""
    shell, keys = shell_with_job(), iter(("ours", "another"))
    content = Content(lambda: {"data": {"key": next(keys)}}, is_valid=lambda _: True, is_trusted=False)
    existing(shell, SECRETS, data={"key": "planted"})
    for _ in range(2):
        await carry_out(shell, create_once(SECRETS, MANIFEST, content))
    assert shell.client.objects[SECRETS, X]["data"] == {"key": "ours"}


@virtual_time
async def test_the_dropped_fields_of_a_refused_object_are_noted() -> None:
    """They may be why it was refused."""
    shell = shell_with_job()

    async def refuse(*_: Any, warned: Callable[[str], None], **__: Any) -> Json:
        warned('unknown field "spec.containers[0].resource"')
        raise INVALID

    shell.client.create = refuse  # type: ignore[method-assign, assignment]
    await carry_out(shell, replace(post(PODS), template="spec.template"), begun=True)
    assert shell.reconciler._states.find("job-uid").dropped_fields == {
        "spec.template": ("spec.containers[0].resource",)
    }


@virtual_time
async def test_a_message_with_the_names_of_siblings_is_reported_once() -> None:
    """The API server names the object in each message, and thousands may be refused for one reason."""
    shell = shell_with_job()
    for name in ("x-0", "x-1"):
        shell.client.fail("create", PODS, api_error(422, "Invalid", f'Pod "{name}" is invalid'), name=name)
    await carry_out(shell, post(PODS, "x-0"), post(PODS, "x-1"), begun=True)
    assert [message for _, _, message in shell.events] == ['Error creating: Pod "x-0" is invalid']
