"""What runs the containers of pods: processes in the environment of this machine, or, with images, podman."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

import trainop
from trainop.local.node.pods.environment import command_line, memory_limit
from trainop.local.node.pods.status import IMAGE_ID
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.memory import MemoryLimits
from trainop.local.node.sandbox.running import RunningContainer
from trainop.local.node.sandbox.sandbox import Command, ContainerProcess, ContainerRuntime, NetworkMode
from trainop.local.node.sandbox.usage import Usage
from trainop.runtime import Json

Report: TypeAlias = Callable[[Literal["Normal", "Warning"], str, str], None]
"""Records an event of a container, by type, reason and message."""


READY = "ready-addresses"
"""The file below a node's directory with the addresses of ready pods, in mode `addresses`."""


class ImageError(Exception):
    """A container cannot have its image now."""

    def __init__(self, reason: str, message: str, *, pulled: bool = False) -> None:
        """`reason` is that of the waiting container; `pulled`: the image was asked for in vain, which is repeated less
        and less often."""
        super().__init__(message)
        self.reason = reason
        self.pulled = pulled


class Image(NamedTuple):
    """The image of a container."""

    id: str
    """By which its container is started; empty: images are not used."""
    shown: str
    """In the status of the pod."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What containers have that do not state their own: variables, working directory and mounts."""

    environment: dict[str, str]
    directory: str
    """Empty: that of the image."""
    mounts: Sequence[Mount]


class Containers(Protocol):
    """Starts containers. Pods have their network from the sandbox, whatever runs their containers."""

    scheme: str
    """Of the IDs of containers."""
    has_users: bool
    """Whether containers run as users that are not the node's, who have to find what the node writes for them."""

    @property
    def has_mounts(self) -> bool:
        """Whether containers have mounts; without, their paths are those of the sources."""
        return True

    @property
    def version(self) -> str:
        """As of `containerRuntimeVersion` of a Node."""
        return ""

    @property
    def description(self) -> str:
        """What containers are here, in one clause."""
        return ""

    async def find_image(self, container: Json, report: Report, /) -> Image:
        """The container's image, once this machine has it. Raises `ImageError`. Cancellation ends a pull."""

    def words(self, container: Json, environment: Mapping[str, str]) -> tuple[Sequence[str], int] | None:
        """The command line, and how many of its words replace the image's entry point; None if nothing is known to
        run."""

    def ignored(self, container: Json, /) -> Iterable[tuple[Literal["Normal", "Warning"], str, str]]:
        """What of the container has no effect here: events with type, reason and message."""

    async def start(self, pod: Json, container: Json, command: Command, stdout: int, stderr: int) -> RunningContainer:
        """Starts a container; see `started` and `ended` of the result for the outcome.

        The caller may close the descriptors when this returns. Raises `OSError`.
        """

    async def usage(self, running: Iterable[RunningContainer]) -> tuple[dict[RunningContainer, Usage], Usage]:
        """What running containers use, and what the whole machine does. Raises `OSError` where /proc is missing."""

    async def close(self) -> None:
        """Ends all containers."""


@dataclass(slots=True)
class ProcessContainers:
    """Containers are processes of this machine, with its files; images are not used."""

    runtime: ContainerRuntime
    memory: MemoryLimits
    scheme: str = "host"
    has_users: bool = False

    @property
    def version(self) -> str:
        return f"host://{trainop.__version__}-{self.runtime.network}"

    @property
    def description(self) -> str:
        return "pods run as processes of this machine, images are not used"

    @property
    def has_mounts(self) -> bool:
        return self.runtime.network == "namespaces"

    async def find_image(self, _container: Json, _report: Report, /) -> Image:
        return Image("", IMAGE_ID)

    def words(self, container: Json, environment: Mapping[str, str]) -> tuple[Sequence[str], int] | None:
        argv = command_line(container, environment)
        if not container.get("command") and (not argv or argv[0].startswith("-")):
            return None
        return argv, 0

    def ignored(self, container: Json) -> Iterator[tuple[Literal["Normal", "Warning"], str, str]]:
        """The image, and a memory limit that is not enforced, once per node."""
        if why := self.memory.unenforced(memory_limit(container)):
            yield "Warning", "MemoryLimitNotEnforced", why
        if image := container.get("image"):
            message = f'Image "{image}" is not used: the container runs in the environment of this machine'
            yield "Normal", "ImageNotUsed", message

    async def start(self, pod: Json, container: Json, command: Command, stdout: int, stderr: int) -> RunningContainer:
        group = self.memory.open(memory_limit(container))
        return await self.runtime.start_container(pod["metadata"]["uid"], command, stdout, stderr, group)

    async def usage(self, running: Iterable[RunningContainer]) -> tuple[dict[RunningContainer, Usage], Usage]:
        return await self.runtime.usage(each for each in running if isinstance(each, ContainerProcess))

    async def close(self) -> None:
        """They end with the runtime."""


async def start_processes(network: NetworkMode | None, *, isolated: bool) -> tuple[ContainerRuntime, Containers]:
    """Starts the network of pods and what runs their containers. Raises `SandboxError`."""
    runtime = await ContainerRuntime.start(network, isolated=isolated)
    return runtime, ProcessContainers(runtime, MemoryLimits.find())
