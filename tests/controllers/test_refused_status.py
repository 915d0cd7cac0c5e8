"""A status that the API server refuses because the job leaves no room for it in etcd."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.controllers.shell import JOBS, Call, Shell, api_error, merge, pytorch_job
from tests.runtime.virtual_time import virtual_time
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import Json


def shell_with_job(job: Json | None = None) -> Shell:
    shell = Shell()
    shell.client.put(JOBS, job or pytorch_job())
    shell.show()
    return shell


TOO_LARGE = "etcdserver: request is too large"
"""As kube-apiserver 1.34 passes it on."""


@pytest.mark.parametrize(("code", "message"), [(500, TOO_LARGE), (413, "Request entity too large"), (422, "Invalid")])
@virtual_time
async def test_a_refused_status_is_reported_once_and_retried_with_back_off(code: int, message: str) -> None:
    shell = shell_with_job()
    reason = "Invalid" if code == 422 else "InternalError"
    shell.client.fail("put status", JOBS, api_error(code, reason, message), times=1000)
    result = await shell.look()
    assert len(shell.pods()) == 3, "pods are created without a status"
    assert result.requeue_after is not None
    waits = []
    for _ in range(6):
        shell.show()
        asked = len(shell.client.names("put status", JOBS))
        await shell.look()
        await asyncio.sleep(3)  # the delay of progress-only status updates
        result = await shell.look()
        assert len(shell.client.names("put status", JOBS)) == asked, "no retry before it is due"
        waits.append(result.requeue_after)
        await asyncio.sleep(1000)
        await shell.look()
        assert len(shell.client.names("put status", JOBS)) > asked, "a retry once it is due"
    assert all(wait is not None and 30 <= wait <= 1000 for wait in waits), waits
    (reported,) = shell.events.of("FailedStatusUpdate")
    assert message in reported
    assert "Created: PyTorchJob j is created." in reported
    assert shell.counted("trainop_statuses_refused_total", framework="pytorch") == 7


@virtual_time
async def test_a_status_that_does_not_fit_is_written_with_short_messages() -> None:
    job = pytorch_job()
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["x"] = 1
    job["spec"]["pytorchReplicaSpecs"] |= {f"Role{number}": {} for number in range(100)}
    shell = shell_with_job(job)

    def no_room(call: Call) -> ApiError | None:
        large = call.verb == "put status" and len(json.dumps(call.body)) > 1000
        return api_error(500, "InternalError", TOO_LARGE) if large else None

    shell.client.faults.append(no_room)
    await shell.look()
    assert shell.conditions()[-1] == ("Failed", "True")
    message = shell.job()["status"]["conditions"][-1]["message"]
    assert message.startswith("PyTorchJob failed validation because")
    assert len(message) <= 128
    assert "account" not in shell.job()["status"]
    assert shell.events.of("FailedStatusUpdate") == []


@virtual_time
async def test_actions_wait_for_a_status_that_could_not_be_written() -> None:
    """A suspended job with status Running would count its deleted pods as failed."""
    shell = shell_with_job()
    await shell.look()
    shell.show()
    shell.client.put(JOBS, merge(shell.job(), {"spec": {"runPolicy": {"suspend": True}}}))
    shell.client.fail("put status", JOBS, api_error(500, "InternalError", TOO_LARGE), times=2)  # whole, and shortened
    shell.show()
    await shell.look()
    assert len(shell.pods()) == 3
    shell.client.put(JOBS, merge(shell.job(), {"metadata": {"labels": {"has": "room"}}}))
    shell.show()
    await shell.look()
    assert shell.pods() == [], "a changed job is retried at once"
