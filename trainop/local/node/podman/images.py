"""Images of containers: whether this machine has them, and pulls, each of which serves all who wait for it.

Reasons and messages are those of kubelet: kubernetes `pkg/kubelet/images/image_manager.go`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import msgspec

from trainop.local.node.podman.program import Podman, Result
from trainop.local.node.podman.references import default_policy, full_name
from trainop.local.node.pods.containers import Image, ImageError, Report
from trainop.local.node.sandbox.running import SandboxError
from trainop.runtime import Json


@dataclass(slots=True)
class _Pull:
    task: asyncio.Task[Result]
    waiting: int = 0


class Images:
    """The images that podman has here."""

    def __init__(self, podman: Podman) -> None:
        self._podman = podman
        self._pulls: dict[str, _Pull] = {}
        self._users: dict[str, str] = {}

    def user(self, image: str) -> str:
        """The user that an image states, by the ID of one that was found."""
        return self._users.get(image, "")

    async def find(self, container: Json, report: Report) -> Image:
        """Pulls the image of a container as its policy says. Raises `ImageError`; cancellation ends a pull for which
        no other container waits."""
        name = container.get("image") or ""
        try:
            full, policy = full_name(name), container.get("imagePullPolicy") or default_policy(name)
        except ValueError as error:
            message = f'Failed to apply default image tag "{name}": {error}'
            report("Warning", "InspectFailed", message)
            raise ImageError("InvalidImageName", message) from error
        try:
            return await self._find(name, full, policy, report)
        except SandboxError as error:
            report("Warning", "InspectFailed", f'Failed to inspect image "{name}": {error}')
            raise ImageError("ImageInspectError", f'Failed to inspect image "{name}": {error}') from error

    async def _find(self, name: str, full: str, policy: str, report: Report) -> Image:
        if policy != "Always":
            if (found := await self._inspect(name)) is not None:
                report("Normal", "Pulled", f'Container image "{name}" already present on machine')
                return found
            if policy == "Never":
                message = f'Container image "{name}" is not present with pull policy of Never'
                report("Warning", "ErrImageNeverPull", message)
                raise ImageError("ErrImageNeverPull", message)
        report("Normal", "Pulling", f'Pulling image "{name}"')
        began = time.monotonic()
        done = await self._pull(full)
        found = None if done.code else await self._inspect(done.output.strip().rpartition("\n")[2])
        if found is None:
            report("Warning", "Failed", f'Failed to pull image "{name}": {done.problem}')
            raise ImageError("ErrImagePull", done.problem, pulled=True)
        report("Normal", "Pulled", f'Successfully pulled image "{name}" in {time.monotonic() - began:.3f}s')
        return found

    async def _inspect(self, name: str) -> Image | None:
        """None if podman has no image of this name. Raises `SandboxError`."""
        done = await self._podman.call("image", "inspect", "--", name)
        if done.code:
            if (await self._podman.call("image", "exists", "--", name)).code == 1:
                return None
            raise SandboxError(done.problem)
        try:
            (found,) = msgspec.json.decode(done.output, type=list[Json])
            id_, digests, user = found["Id"], found.get("RepoDigests") or [], found.get("User") or ""
        except (msgspec.DecodeError, LookupError, ValueError) as error:
            raise SandboxError(f"podman image inspect says nothing that is understood: {error!r}") from error
        self._users[id_] = user
        return Image(id_, digests[0] if digests else f"sha256:{id_}")

    async def _pull(self, full: str) -> Result:
        pull = self._pulls.get(full)
        if pull is None:
            call = self._podman.call("pull", "--quiet", "--", full, limit=None)
            pull = self._pulls[full] = _Pull(asyncio.create_task(call))
        pull.waiting += 1
        try:
            return await asyncio.shield(pull.task)
        finally:
            pull.waiting -= 1
            if not pull.waiting and self._pulls.pop(full, None) is not None:
                pull.task.cancel()
                await asyncio.wait({pull.task})
