"""What the writer of PodGroups remembers of its writes, and when it forgets it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.controllers.shell import JOBS, Shell, api_error
from tests.controllers.test_gang import (
    EACH,
    change_policy,
    gang_shell,
    group,
    refusal,
    run_pods,
    settle,
    started,
)
from tests.runtime.virtual_time import virtual_time
from trainop.engine.gang_scheduler import PLUGIN_GROUPS
from trainop.engine.seen import Options
from trainop.runtime.errors import ApiError

INVALID = api_error(422, "Invalid", "no such queue")
REFUSED = {
    "invalid": INVALID,
    "quota": api_error(403, "Forbidden", "podgroups is forbidden: exceeded quota: q"),
    "rbac": api_error(403, "Forbidden", 'User "x" cannot create resource "podgroups"'),
    "webhook": api_error(403, "Forbidden", 'admission webhook "w" denied the request'),
}
TRANSIENT = {
    "too many requests": api_error(429, "TooManyRequests", "slow down"),
    "unauthorized": api_error(401, "Unauthorized", "token"),
}


def messages(shell: Shell) -> list[str]:
    return [message for _, _, message in shell.events if message.startswith("Error ")]


@pytest.mark.parametrize("error", REFUSED)
@virtual_time
async def test_each_kind_of_refusal_is_shown_and_waits(error: str) -> None:
    shell = gang_shell()
    shell.client.fail("create", PLUGIN_GROUPS, REFUSED[error])
    result = await settle(shell)
    found = refusal(shell)
    assert found is not None
    assert (found["reason"], shell.client.names("create", PLUGIN_GROUPS)) == ("PodGroupRefused", ["j"])
    assert result.requeue_after == pytest.approx(60, rel=0.2)


@pytest.mark.parametrize("error", REFUSED)
@virtual_time
async def test_a_refusal_is_in_the_status_although_no_event_follows(error: str) -> None:
    """A pass plans before it writes: another one has to follow at once, which plans with the refusal."""
    shell = gang_shell()
    shell.client.fail("create", PLUGIN_GROUPS, REFUSED[error])
    shell.show()
    first = await shell.look()
    assert first.requeue_after == pytest.approx(0, abs=0.1)
    shell.show()
    await shell.look()
    await shell.clock.sleep(2)
    shell.show()
    await shell.look()
    found = refusal(shell)
    assert found is not None
    assert found["reason"] == "PodGroupRefused"


@pytest.mark.parametrize("error", TRANSIENT)
@virtual_time
async def test_a_busy_server_is_nothing_to_report(error: str) -> None:
    shell = gang_shell()
    shell.client.fail("create", PLUGIN_GROUPS, TRANSIENT[error])
    shell.show()
    with pytest.raises(ApiError):
        await shell.look()
    assert messages(shell) == []
    assert refusal(shell) is None


@virtual_time
async def test_after_a_write_the_next_refusal_waits_as_the_first() -> None:
    shell = gang_shell()
    shell.client.fail("create", PLUGIN_GROUPS, INVALID, times=3)
    while not shell.pods():
        result = await settle(shell)
        await asyncio.sleep(result.requeue_after or 0)
    await run_pods(shell)
    shell.client.fail("patch merge", PLUGIN_GROUPS, INVALID)
    change_policy(shell, minAvailable=1)
    result = await settle(shell)
    assert result.requeue_after == pytest.approx(60, rel=0.2)


@virtual_time
async def test_a_resumed_job_has_no_refusal_of_the_group_that_it_had() -> None:
    shell = await started()
    shell.client.fail("patch merge", PLUGIN_GROUPS, INVALID)
    change_policy(shell, minAvailable=1)
    for _ in range(2):  # the status waits for a moment
        await settle(shell)
    assert refusal(shell) is not None
    suspend(shell, True)
    await settle(shell)
    suspend(shell, False)
    shell.show()
    await shell.look()
    assert group(shell)
    assert refusal(shell) is None


def suspend(shell: Shell, value: bool) -> None:
    job = shell.job()
    metadata = job["metadata"] | {"generation": job["metadata"].get("generation", 1) + 1}
    policy: Any = job["spec"].get("runPolicy", {}) | {"suspend": value}
    shell.client.put(JOBS, job | {"metadata": metadata, "spec": job["spec"] | {"runPolicy": policy}})


@EACH
@virtual_time
async def test_the_fourth_write_of_the_same_warns_and_each_waits_longer(options: Options) -> None:
    assert options.gang is not None
    shape = options.gang.shape
    shell = await started(options)
    resource = group_resource(shell)
    times: list[float] = []
    warned_after = 0
    while len(times) < 6:
        before = len(shell.client.names("patch merge", resource))
        shell.client.put(resource, group(shell) | {"spec": group(shell)["spec"] | shape({"minMember": 7})})
        while len(shell.client.names("patch merge", resource)) == before:
            shell.show()
            result = await shell.look()
            assert len(shell.client.names("patch merge", resource)) > before or (result.requeue_after or 0) > 0
            await asyncio.sleep(0.5)
        times.append(shell.clock.monotonic())
        if not warned_after and messages(shell):
            warned_after = len(times)
    # the create of the group was the first write for this spec
    assert warned_after == 3
    assert len(messages(shell)) == 1
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 4 * pauses[0]


def group_resource(shell: Shell) -> Any:
    assert shell.view.gang is not None
    return shell.view.gang.groups.resource
