"""The page reads the logs that it follows at a pace; other readers see a line when it arrives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from trainop.commands.logs import LogOptions, Logs
from trainop.runtime import ApiError
from trainop.runtime.client.transport import Request
from trainop.ui import source
from trainop.ui.feed import Feed
from trainop.ui.source import JobId, Source

RUNNING: dict[str, Any] = {
    "metadata": {"name": "train-worker-0", "namespace": "ns", "uid": "1"},
    "spec": {"containers": [{"name": "pytorch"}]},
    "status": {"phase": "Running", "containerStatuses": [{"name": "pytorch", "state": {"running": {}}}]},
}
JOB = {
    "metadata": {"name": "train", "namespace": "ns"},
    "status": {"conditions": [{"type": "Succeeded", "status": "True"}]},
}
TARGET: Any = SimpleNamespace(
    namespace="ns", name="train", title="train", raw=JOB, pod_selector="", type=SimpleNamespace(resource=None)
)


class Client:
    """Has pods, and no logs."""

    def __init__(self, replicas: int = 1) -> None:
        self.asked: list[Request] = []
        self._pods = [{**RUNNING, "metadata": {**RUNNING["metadata"], "uid": str(n)}} for n in range(replicas)]

    async def list(self, *_args: object, **_more: object) -> Any:
        return SimpleNamespace(items=self._pods)

    async def get(self, *_args: object) -> Any:
        return JOB

    async def open(self, request: Request) -> NoReturn:
        self.asked.append(request)
        raise ApiError(404, "NotFound", "no", {})


@pytest.mark.parametrize("ended", [False, True])
async def test_the_page_reads_what_it_follows_at_a_pace(ended: bool, monkeypatch: pytest.MonkeyPatch):
    async def find(*_args: object) -> Any:
        return TARGET

    monkeypatch.setattr(source, "find_job", find)
    client = Client()
    connection: Any = SimpleNamespace(client=client, now="2026-01-01" if ended else None)
    await Source(connection, "ns", "t").logs(JobId("ns", "PyTorchJob", "train"), Feed(lambda: None), {})
    assert [each.pace for each in client.asked] == [0.0 if ended else source.PACE]


async def test_trainop_logs_sees_each_line_when_it_arrives():
    client = Client()
    connection: Any = SimpleNamespace(client=client)
    await Logs(connection, TARGET, LogOptions(), Feed(lambda: None)).show(follow=True)
    assert [each.pace for each in client.asked] == [0.0]


@pytest.mark.parametrize(("replicas", "factor"), [(1, 1.0), (32, 1.0), (64, 2.0)])
async def test_many_logs_are_read_more_seldom(replicas: int, factor: float):
    client = Client(replicas)
    connection: Any = SimpleNamespace(client=client)
    await Logs(connection, TARGET, LogOptions(pace=0.5), Feed(lambda: None)).show(follow=True)
    assert [each.pace for each in client.asked] == [0.5 * factor] * replicas
