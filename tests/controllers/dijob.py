"""DIJobs under the shared controller, on the embedded API server and in virtual time. The tests play di-server and the
kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.controllers.test_shell_operator import QUIET, Stage, running, stage
from tests.kinds.dijob_world import dijob, template
from trainop.kinds.dijob.crd import dijob_crd
from trainop.kinds.dijob.names import DIJOBS, Role
from trainop.kinds.dijob.pods import PodOptions, build_pod, read_job
from trainop.runtime import PODS, SERVICES, Json
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS, EVENTS

SETTINGS = replace(QUIET, schemes=("DIJob",))


class DiStage:
    """An operator that runs only DIJobs, and an API server."""

    def __init__(self, here: Stage) -> None:
        self.stage = here
        self.client = here.client
        self.writes = here.transport.writes

    async def submit(self, name: str = "a", **fields: Any) -> Json:
        body = dijob(name=name, **fields)
        made = await self.client.create(DIJOBS, {**body, "metadata": {"name": name}}, namespace="ns")
        await self.settle()
        return made

    async def settle(self, seconds: float = 3) -> None:
        await asyncio.sleep(seconds)

    async def job(self, name: str = "a") -> Json:
        return await self.client.get(DIJOBS, name, "ns")

    async def status(self, name: str = "a") -> Json:
        found: Json = (await self.job(name)).get("status") or {}
        return found

    async def phase(self, name: str = "a") -> str:
        found: str = (await self.status(name)).get("phase", "")
        return found

    async def pods(self) -> list[str]:
        return await self.stage.names(PODS)

    async def services(self) -> list[str]:
        return await self.stage.names(SERVICES)

    async def set_phase(self, pod: str, phase: str) -> None:
        await self.stage.set_status(pod, {"phase": phase})
        await self.settle()

    async def add(self, role: Role, suffix: str, job: str = "a") -> str:
        """A replica that di-server has created."""
        pod = build_pod(read_job(await self.job(job)), role, template(), PodOptions("s"), suffix=suffix)
        await self.client.create(PODS, pod, namespace="ns")
        await self.settle()
        return str(pod["metadata"]["name"])

    async def events(self) -> list[tuple[str, str, str]]:
        """Type, reason and message of the events about DIJobs, in the order of their names."""
        found = (await self.client.list(EVENTS, "ns")).items
        return [(each["type"], each["reason"], each["message"]) for each in found]

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[None]:
        async with running(self.stage.operator(SETTINGS)):
            await self.settle()
            yield


@asynccontextmanager
async def di_stage(*, crd: bool = True, run: bool = True) -> AsyncIterator[DiStage]:
    async with stage(crds=False, run=False) as here:
        if crd:
            await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, dijob_crd())
        found = DiStage(here)
        if not run:
            yield found
            return
        async with found.operator():
            yield found
