"""One pod on the node: its sandbox and volumes, its containers in their order, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from trainop.local.node.network.names import hosts_file, resolver_file
from trainop.local.node.pods.container import Container
from trainop.local.node.pods.context import SHAPE_FAULTS, Kit
from trainop.local.node.pods.environment import Surroundings
from trainop.local.node.pods.status import PodState
from trainop.local.node.pods.stopping import StopSignal
from trainop.local.node.pods.volumes import VolumeDirectory, VolumeError, volume_references
from trainop.local.node.sandbox.bridge import HUB_ADDRESS
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.sandbox import SandboxError
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import Json

GRACE = 30
SHUTDOWN = ("Terminated", "Pod was terminated in response to imminent node shutdown.")
"""kubelet `pkg/kubelet/nodeshutdown`: reason and message, also of the condition DisruptionTarget."""
DEADLINE = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


class Pod:
    """`run` takes it through its life. `state` is what its status is made of; `on_change` hears when it changes."""

    def __init__(self, kit: Kit, pod: Json, here: Surroundings, on_change: Callable[[], None]) -> None:
        self.pod = pod
        self.here = here
        self._kit = kit
        self._on_change = on_change
        self._root = kit.pod_directory(pod["metadata"])
        self._volumes = VolumeDirectory(self._root / "volumes", kit.directory / "claims")
        self._stop = StopSignal()
        self._stop_sidecars = StopSignal()
        self._failure: tuple[str, str] | None = None
        self._inits = [self._make_init(spec) for spec in pod["spec"].get("initContainers") or ()]
        first = "PodInitializing" if self._inits else "ContainerCreating"
        self._containers = [
            Container(kit, self, spec, stop=self._stop, on_change=on_change, waiting=first)
            for spec in pod["spec"]["containers"]
        ]
        self._started = kit.now()
        self._sandbox = False
        self._final = False

    def _make_init(self, spec: Json) -> Container:
        sidecar = spec.get("restartPolicy") == "Always"
        stop = self._stop_sidecars if sidecar else self._stop
        return Container(self._kit, self, spec, stop=stop, on_change=self._on_change, init=True)

    @property
    def state(self) -> PodState:
        return PodState(
            inits=[container.state for container in self._inits],
            containers=[container.state for container in self._containers],
            sandbox=self._sandbox,
            final=self._final,
            failure=self._failure,
            disrupted=self._failure == SHUTDOWN,
            started=self._started,
            address=self.here.pod_ip,
            host_address=self.here.host_ip,
        )

    @property
    def final(self) -> bool:
        """Nothing of it runs or will run."""
        return self._final

    def stop(self, grace: float, failure: tuple[str, str] | None = None) -> None:
        """Begins the end; a later call hastens it. `failure` is reason and message for the status, the first counts."""
        self._failure = self._failure or failure
        if self._stop.is_set and grace < self._stop.grace:
            asyncio.get_running_loop().call_later(grace, self._kill)
        self._stop.set(grace)

    async def run(self) -> None:
        """Returns when it is final; cancelled, it kills what runs."""
        self._on_change()
        try:
            if await self._open():
                async with asyncio.TaskGroup() as tasks:
                    deadline = tasks.create_task(self._keep_deadline())
                    if await self._initialize(tasks):
                        await self._run_containers()
                    self._stop_sidecars.set(self._stop.grace if self._stop.is_set else self.grace)
                    deadline.cancel()
        finally:
            self._kill()
        await self._close()

    def mounts(self, container: Json, environment: dict[str, str]) -> list[Mount]:
        """Everything that `container` sees in other places than this machine has it."""
        own = [
            Mount("/etc/hosts", str(self._root / "hosts")),
            Mount("/etc/resolv.conf", str(self._root / "resolv.conf")),
        ]
        volumes = self._volumes.mounts(self.pod, container, environment)
        taken = {mount.target for mount in volumes}
        return [mount for mount in [*self._kit.common_mounts, *own] if mount.target not in taken] + volumes

    async def refresh_volumes(self) -> None:
        """Shows changed ConfigMaps and Secrets to the running containers; what is gone by now stays as it was."""
        references = volume_references(self.pod)
        if references and self._sandbox:
            sources = await self._kit.fetch(references, self._namespace)
            try:
                self._volumes.prepare(self.pod, sources, self.here)
            except (VolumeError, OSError) as error:
                self._kit.tell(self.pod, "Warning", "FailedMount", str(error))

    @property
    def _namespace(self) -> str:
        return str(self.pod["metadata"].get("namespace", ""))

    @property
    def grace(self) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        return float(self.pod["spec"].get("terminationGracePeriodSeconds", GRACE))

    def _kill(self) -> None:
        for container in [*self._inits, *self._containers]:
            container.kill()

    async def _open(self) -> bool:
        """Makes volumes and sandbox, however often it takes; False if the pod stops before."""
        delay = self._kit.timing.retry_initial
        while not self._stop.is_set:
            try:
                sources = await self._kit.fetch(volume_references(self.pod), self._namespace)
                self._volumes.prepare(self.pod, sources, self.here)
                await self._open_sandbox()
            except VolumeError as error:
                self._kit.tell(self.pod, "Warning", "FailedMount", str(error))
            except (SandboxError, OSError) as error:
                self._kit.tell(self.pod, "Warning", "FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}")
            except ApiError as error:
                self._kit.tell(self.pod, "Warning", "FailedMount", f"the API server refuses: {error}")
            except SHAPE_FAULTS as error:
                self._kit.tell(self.pod, "Warning", "FailedMount", f"not volumes that can be understood: {error!r}")
            else:
                return True
            if await self._stop.pause(delay):
                break
            delay = min(2 * delay, self._kit.timing.retry_limit)
        return False

    async def _open_sandbox(self) -> None:
        spec, meta = self.pod["spec"], self.pod["metadata"]
        hostname = str(spec.get("hostname") or meta["name"])[:63].rstrip("-.")
        self._root.mkdir(parents=True, exist_ok=True)
        (self._root / "hosts").write_text(hosts_file(self.pod, self.here.pod_ip, hostname))
        (self._root / "resolv.conf").write_text(resolver_file(self._namespace, HUB_ADDRESS))
        await self._kit.machine.open_pod(meta["uid"], hostname, self.here.pod_ip)
        self._sandbox = True

    async def _initialize(self, tasks: asyncio.TaskGroup) -> bool:
        """Runs the init containers; False if one failed for good or the pod stops."""
        policy = "Never" if self.pod["spec"].get("restartPolicy") == "Never" else "OnFailure"
        for container in self._inits:
            if container.sidecar:
                tasks.create_task(container.run("Always"))
                await container.up.wait()
            else:
                await container.run(policy)
            if self._stop.is_set or not container.state.initialized:
                return False
        return True

    async def _run_containers(self) -> None:
        policy = self.pod["spec"].get("restartPolicy") or "Always"
        async with asyncio.TaskGroup() as tasks:
            for container in self._containers:
                tasks.create_task(container.run(policy))

    async def _keep_deadline(self) -> None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is not None:
            await self._kit.clock.sleep(seconds)
            self.stop(self.grace, DEADLINE)

    async def _close(self) -> None:
        self._sandbox = False
        self._final = True
        with suppress(SandboxError):  # the machine is gone, and the sandbox with it
            await self._kit.machine.close_pod(self.pod["metadata"]["uid"])
        self._volumes.remove()
        self._on_change()
