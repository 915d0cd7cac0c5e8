"""One pod on the node: sets up volumes and sandbox, runs init containers, sidecars and containers, tears it down.

`Pod` knows nothing of the API's status format; `worker.PodWorker` turns its `state` into the pod's status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from trainop.local.node.devices import DeviceError
from trainop.local.node.network.names import hostname_of, hosts_file, resolver_file
from trainop.local.node.pods.container import Container
from trainop.local.node.pods.context import MALFORMED_OBJECT_ERRORS, NodeContext
from trainop.local.node.pods.environment import Placement
from trainop.local.node.pods.service_account import MOUNT_PATH, VARIABLES
from trainop.local.node.pods.status import PodState
from trainop.local.node.pods.stopping import StopSignal
from trainop.local.node.pods.tokens import CHECK_SECONDS, PodTokens
from trainop.local.node.pods.volumes import VolumeDirectory, VolumeError, volume_references
from trainop.local.node.sandbox.bridge import HUB_ADDRESS
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.running import RunningContainer, SandboxError
from trainop.runtime import ApiError, Json

DEFAULT_GRACE_PERIOD = 30
_KILL_AGAIN = 0.05  # seconds between two looks at the containers of a pod that restarts in place
_ACCOUNT = "serviceaccount"
SHUTDOWN = ("Terminated", "Pod was terminated in response to imminent node shutdown.")
"""Reason and message of a pod ended by node shutdown; the message is also that of its DisruptionTarget condition.

Source: kubelet `pkg/kubelet/nodeshutdown`."""
DEADLINE = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


class Pod:
    """The lifecycle of one pod. `run` executes it; `on_change` is called whenever `state` has changed.

    `obj` is the latest pod object; the owner replaces it on updates.
    """

    def __init__(self, context: NodeContext, pod: Json, placement: Placement, on_change: Callable[[], None]) -> None:
        self.obj = pod
        self.placement = placement
        self._context = context
        self._on_change = on_change
        self._root = context.pod_directory(pod["metadata"])
        self._volumes = VolumeDirectory(
            self._root / "volumes",
            context.directory / "claims",
            isolated=context.isolation is not None,
            has_users=context.containers.has_users,
        )
        self._tokens = PodTokens(context.client, context.clock)
        self._writing = asyncio.Lock()
        """Held from reading what volumes contain to writing it, so that the latest content is written last."""
        self._stop = StopSignal()
        self._stop_sidecars = StopSignal()
        self._failure: tuple[str, str] | None = None
        self._inits = [self._make_init(spec) for spec in pod["spec"].get("initContainers") or ()]
        first = "PodInitializing" if self._inits else "ContainerCreating"
        self._containers = [
            Container(context, self, spec, stop=self._stop, on_change=on_change, waiting=first)
            for spec in pod["spec"]["containers"]
        ]
        self._lives: list[tuple[Container, asyncio.Task[None]]] = []
        """The containers that run or have run since the pod started, or last restarted in place."""
        self._reset = asyncio.Event()
        self._can_reset = any(one.spec.get("restartPolicyRules") for one in [*self._inits, *self._containers])
        self._started = context.now()
        self._sandbox = False
        self._calls_api = False
        self._final = False

    def _make_init(self, spec: Json) -> Container:
        sidecar = spec.get("restartPolicy") == "Always"
        stop = self._stop_sidecars if sidecar else self._stop
        return Container(self._context, self, spec, stop=stop, on_change=self._on_change, init=True)

    @property
    def state(self) -> PodState:
        """The current state of the pod and its containers, from which the API status is computed."""
        return PodState(
            inits=[container.state for container in self._inits],
            containers=[container.state for container in self._containers],
            sandbox=self._sandbox,
            final=self._final,
            failure=self._failure,
            disrupted=self._failure == SHUTDOWN,
            resetting=self._reset.is_set() if self._can_reset else None,
            started=self._started,
            address=self.placement.pod_ip,
            host_address=self.placement.host_ip,
        )

    def process(self, container: str) -> RunningContainer | None:
        """The process of a running container; None if it is not running."""
        found = [one for one in [*self._inits, *self._containers] if one.spec["name"] == container]
        return found[0].process if found else None

    @property
    def final(self) -> bool:
        """Whether no process of the pod is running or will be started."""
        return self._final

    def stop(self, grace: float, failure: tuple[str, str] | None = None) -> None:
        """Starts termination with `grace` seconds; a later call can only shorten the grace period.

        `failure` is the reason and message for the status; the first one given is kept.
        """
        self._failure = self._failure or failure
        if self._stop.is_set and grace < self._stop.grace:
            asyncio.get_running_loop().call_later(grace, self._kill)
        self._stop.set(grace)

    @property
    def resetting(self) -> bool:
        """Whether the pod restarts in place, so that no container restarts by itself."""
        return self._reset.is_set()

    async def wait_for_reset(self) -> None:
        await self._reset.wait()

    def reset(self) -> None:
        """Restarts all containers, the init containers included, unless the pod terminates."""
        if not self._stop.is_set:
            self._reset.set()
            self._on_change()

    async def run(self) -> None:
        """Runs the pod and returns when it is final; cancellation kills its processes."""
        self._on_change()
        try:
            if await self._set_up():
                async with asyncio.TaskGroup() as tasks:
                    deadline = tasks.create_task(self._enforce_deadline())
                    renewal = tasks.create_task(self._renew_tokens())
                    while await self._run_until_reset(tasks):
                        pass
                    self._stop_sidecars.set(self._stop.grace if self._stop.is_set else self.grace)
                    deadline.cancel()
                    renewal.cancel()
        finally:
            self._kill()
            self._context.devices.release(self.obj["metadata"]["uid"])
        await self._tear_down()

    def mounts(self, container: Json, environment: dict[str, str]) -> list[Mount]:
        """The mounts of `container`: its volumes, hosts and resolv.conf, and the node's common mounts.

        A volume replaces another mount with the same target. Raises `VolumeError`.
        """
        isolation = self._context.isolation
        first = isolation.mounts(self._root / "isolated" / container["name"]) if isolation else []
        files = [
            Mount("/etc/hosts", str(self._root / "hosts")),
            Mount("/etc/resolv.conf", str(self._root / "resolv.conf")),
        ]
        if self._calls_api:
            files.append(Mount(MOUNT_PATH, str(self._root / _ACCOUNT), read_only=True))
        volumes = self._volumes.mounts(self.obj, container, environment)
        targets = {mount.target for mount in volumes}
        return [
            mount for mount in [*first, *self._context.common_mounts, *files] if mount.target not in targets
        ] + volumes

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of all containers, with which clients find the API server."""
        return VARIABLES if self._calls_api else {}

    async def refresh_volumes(self) -> None:
        """Rewrites volumes after something that they contain has changed; on an error, records an event and keeps them.

        Raises `ApiError` as the client does, and `ConnectionError`.
        """
        if self._sandbox:
            try:
                await self._write_volumes()
            except (ConnectionError, TimeoutError):
                raise
            except (VolumeError, OSError) as error:
                self._context.record_event(self.obj, "Warning", "FailedMount", str(error))

    async def _write_volumes(self) -> None:
        """Writes all volumes with their current content. Raises `VolumeError`, `ApiError` and `OSError`."""
        async with self._writing:
            sources = await self._context.fetch(volume_references(self.obj), self._namespace)
            tokens = await self._tokens.of_volumes(self.obj)
            if self._final:
                return  # the volumes are removed
            self._volumes.prepare(self.obj, sources, self.placement, tokens)
            if await self._context.service_accounts.write(self.obj, self._tokens, self._root / _ACCOUNT):
                self._calls_api = True

    async def _renew_tokens(self) -> None:
        """Renews the pod's tokens and replaces their files, until cancelled."""
        while True:
            await self._context.clock.sleep(CHECK_SECONDS)
            if self._tokens.due():
                with suppress(ApiError, ConnectionError, TimeoutError):  # tried again at the next look
                    await self.refresh_volumes()

    @property
    def _namespace(self) -> str:
        return str(self.obj["metadata"].get("namespace", ""))

    @property
    def grace(self) -> float:
        """`terminationGracePeriodSeconds`: seconds between SIGTERM and SIGKILL."""
        return float(self.obj["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_PERIOD))

    def _kill(self) -> None:
        for container in [*self._inits, *self._containers]:
            container.kill()

    async def _set_up(self) -> bool:
        """Creates volumes and sandbox, with retries; False if termination started before that succeeded."""
        delay = self._context.timing.retry_initial
        while not self._stop.is_set:
            try:
                self._context.devices.allocate(self.obj["metadata"]["uid"], self.obj["spec"])
                await self._write_volumes()
                await self._open_sandbox()
            except DeviceError as error:
                self._context.record_event(self.obj, "Warning", "UnexpectedAdmissionError", str(error))
            except VolumeError as error:
                self._context.record_event(self.obj, "Warning", "FailedMount", str(error))
            except (SandboxError, OSError) as error:
                self._context.record_event(
                    self.obj, "Warning", "FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}"
                )
            except ApiError as error:
                self._context.record_event(self.obj, "Warning", "FailedMount", f"API request failed: {error}")
            except MALFORMED_OBJECT_ERRORS as error:
                self._context.record_event(self.obj, "Warning", "FailedMount", f"malformed volumes: {error!r}")
            else:
                return True
            if await self._stop.wait_for(delay):
                break
            delay = min(2 * delay, self._context.timing.retry_limit)
        return False

    async def _open_sandbox(self) -> None:
        """Writes the pod's hosts and resolv.conf files and creates its sandbox. Raises `SandboxError`, `OSError`."""
        meta, hostname = self.obj["metadata"], hostname_of(self.obj)
        self._root.mkdir(parents=True, exist_ok=True)
        (self._root / "hosts").write_text(hosts_file(self.obj, self.placement.pod_ip, hostname))
        (self._root / "resolv.conf").write_text(resolver_file(self.obj, HUB_ADDRESS))
        await self._context.runtime.run_pod_sandbox(meta["uid"], hostname, self.placement.pod_ip)
        self._sandbox = True

    async def _run_until_reset(self, tasks: asyncio.TaskGroup) -> bool:
        """Runs all containers. Returns whether they are to be run again, as new: then all have been killed, without a
        grace period, as kubelet does (`pkg/kubelet/kuberuntime/kuberuntime_manager.go`, `SyncPod`)."""
        work, reset = tasks.create_task(self._run_all(tasks)), tasks.create_task(self._reset.wait())
        await asyncio.wait({work, reset}, return_when=asyncio.FIRST_COMPLETED)
        reset.cancel()
        if not self._reset.is_set():
            return False
        await self._context.clock.sleep(2 * self._context.timing.status_batch_delay)  # the exit code is shown once
        left = {work, *(life for _, life in self._lives)}
        while left:  # a container may have been about to start
            for container, _ in self._lives:
                container.kill()
            _, left = await asyncio.wait(left, timeout=_KILL_AGAIN)
        self._lives.clear()
        if self._stop.is_set:
            self._reset.clear()
            return False
        for container in [*self._inits, *self._containers]:
            container.make_new()
        self._reset.clear()
        self._on_change()
        return True

    async def _run_all(self, tasks: asyncio.TaskGroup) -> None:
        if await self._initialize(tasks):
            policy = self.obj["spec"].get("restartPolicy") or "Always"
            await asyncio.wait([self._start(tasks, container, policy) for container in self._containers])

    def _start(self, tasks: asyncio.TaskGroup, container: Container, policy: str) -> asyncio.Task[None]:
        life = tasks.create_task(container.run(policy))
        self._lives.append((container, life))
        return life

    async def _initialize(self, tasks: asyncio.TaskGroup) -> bool:
        """Runs the init containers in order; False if one failed permanently or termination started."""
        policy = "Never" if self.obj["spec"].get("restartPolicy") == "Never" else "OnFailure"
        for container in self._inits:
            if container.sidecar:
                self._start(tasks, container, "Always")
                await container.started_or_ended.wait()
            else:
                await asyncio.wait({self._start(tasks, container, policy)})
            if self._stop.is_set or self.resetting or not container.state.initialized:
                return False
        return True

    async def _enforce_deadline(self) -> None:
        """Terminates the pod after `activeDeadlineSeconds`."""
        seconds = self.obj["spec"].get("activeDeadlineSeconds")
        if seconds is not None:
            await self._context.clock.sleep(seconds)
            self.stop(self.grace, DEADLINE)

    async def _tear_down(self) -> None:
        """Marks the pod final, then removes its sandbox and volumes; logs are kept until the object is deleted."""
        self._sandbox = False
        self._final = True
        with suppress(SandboxError):  # the container runtime has exited, and the sandbox with it
            await self._context.runtime.stop_pod_sandbox(self.obj["metadata"]["uid"])
        self._volumes.remove()
        self._on_change()
