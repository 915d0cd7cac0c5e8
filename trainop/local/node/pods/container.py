"""One container of a pod: starts it, restarts it with back-off, runs its probes and hooks, and tracks its state.

Each run has its own process, log and container ID. `ContainerState` is what the pod status is computed from.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from trainop.local import private_files
from trainop.local.node.network.addresses import rewrite_command
from trainop.local.node.pods.containers import Image
from trainop.local.node.pods.context import MALFORMED_OBJECT_ERRORS, NodeContext
from trainop.local.node.pods.environment import ConfigError, Placement, container_environment, references
from trainop.local.node.pods.image_wait import ImageWait
from trainop.local.node.pods.logreader import last_lines, termination_message
from trainop.local.node.pods.logs import LogCollector, RunLog
from trainop.local.node.pods.probes import ProbeManager
from trainop.local.node.pods.status import RESETTING, ContainerState, Running, Terminated, Waiting, restarts_all
from trainop.local.node.pods.stopping import StopSignal
from trainop.local.node.pods.volumes import VolumeError
from trainop.local.node.sandbox.filesystem import TERMINATION_LOG, Mount
from trainop.local.node.sandbox.running import Exit, RunningContainer, SandboxError
from trainop.local.node.sandbox.sandbox import CANNOT_START, Command
from trainop.runtime import ApiError, Json

_LOG_DRAIN_TIMEOUT = 2.0  # seconds to wait for end-of-file on the log pipes after the container has exited

_REASON_SIZE = 1024  # bytes of a log that say why a container could not be started

_IDENTITY = ("HOSTNAME", "KUBERNETES_POD_NAME")
"""Variables with the pod's own name; in the pods of DIJobs the second is a literal."""

POD_UID = "TRAINOP_POD_UID"
"""The variable by which the processes of a pod are told from those of others in mode `addresses`, where pods see all
processes of the machine."""

NO_COMMAND = (
    'no command specified: images are not pulled here, so the entry point of "{image}" is not known; '
    "state `command` in the container"
)


class ContainerPod(Protocol):
    """The pod of a container, as far as the container uses it."""

    obj: Json
    placement: Placement

    @property
    def variables(self) -> Mapping[str, str]: ...
    @property
    def resetting(self) -> bool: ...
    def reset(self) -> None: ...
    async def wait_for_reset(self) -> None: ...
    def mounts(self, container: Json, environment: dict[str, str]) -> list[Mount]: ...


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything needed to start one run; `outputs` are the write ends of the stdout and stderr pipes."""

    command: Command
    image: Image
    log: RunLog
    termination_log: Path
    """The file that is mounted at `terminationMessagePath`."""
    collector: LogCollector
    outputs: tuple[int, int]


class Container:
    """One container. `state` is an immutable value; `on_change` is called each time it is replaced."""

    def __init__(
        self,
        context: NodeContext,
        pod: ContainerPod,
        spec: Json,
        *,
        stop: StopSignal,
        on_change: Callable[[], None],
        init: bool = False,
        waiting: str = "PodInitializing",
    ) -> None:
        self.spec = spec
        self.sidecar = init and spec.get("restartPolicy") == "Always"
        self.state = ContainerState(spec["name"], spec.get("image") or "", Waiting(waiting), sidecar=self.sidecar)
        self._context = context
        self._pod = pod
        self._stop = stop
        self._on_change = on_change
        self._image = ImageWait(context, spec, self._report, self._show_waiting, self._pause)
        self._init = init and not self.sidecar
        self._process: RunningContainer | None = None
        self._runs = 0
        self._delay = 0.0
        self.started_or_ended = asyncio.Event()
        """Set when the container has started and passed its startup probe, or has permanently ended."""

    def update_state(self, **fields: object) -> None:
        """Replaces fields of `state` and calls `on_change` if the state differs."""
        updated = replace(self.state, **fields)  # type: ignore[arg-type]  # names of ContainerState's fields
        if updated != self.state:
            self.state = updated
            if updated.started:
                self.started_or_ended.set()
            self._on_change()

    async def run(self, policy: str) -> None:
        """Runs and restarts the container until `policy` allows no more restarts, the pod terminates, or all of its
        containers are to restart."""
        try:
            while (ended := await self._run_once()) is not None:
                if restarts_all(self.spec, ended.code):
                    self._pod.reset()
                if self._pod.resetting or not _restarts(policy, ended.code) or await self._back_off(ended):
                    return
        finally:
            self.started_or_ended.set()

    async def stop(self, grace: float, reason: str = "") -> None:
        """Runs the preStop hook, sends SIGTERM, and SIGKILL to all processes once `grace` seconds in total are over."""
        process = self._process
        if process is None or process.ended.done():
            return
        self._report("Normal", "Killing", reason or f"Stopping container {self.spec['name']}")
        deadline = self._context.clock.monotonic() + grace
        hook = ((self.spec.get("lifecycle") or {}).get("preStop") or {}).get("exec")
        if hook and grace > 0:
            await self._run_hook(process, hook["command"], grace)
        process.signal(signal.SIGTERM)
        await asyncio.wait({process.ended}, timeout=max(0.0, deadline - self._context.clock.monotonic()))
        if not process.ended.done():
            process.kill()
            await process.ended

    @property
    def process(self) -> RunningContainer | None:
        """The run in which the container's command is running, if it is."""
        running = isinstance(self.state.state, Running)
        return self._process if running else None

    def make_new(self) -> None:
        """Makes the container as new after it has ended, because its pod restarts in place. As with kubelet, how it
        ended is no longer known."""
        now = self._context.now()
        state = Waiting(RESETTING, "The container is removed because RestartAllContainers in place")
        last = Terminated(137, RESETTING, now, now, state.message) if self._runs else None
        self._delay = 0.0
        self.started_or_ended.clear()
        self.update_state(state=state, last=last, restarts=self._runs, ready=False, started=False)

    def kill(self) -> None:
        """Sends SIGKILL to all processes of the container, regardless of any grace period."""
        if self._process is not None:
            self._process.kill()

    async def _stop_on_signal(self) -> None:
        await self._stop.wait()
        await self.stop(self._stop.grace)

    async def _run_hook(self, process: RunningContainer, argv: list[str], grace: float) -> None:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            async with asyncio.timeout(grace):
                code = await process.execute(argv, null, null, null)
        except (TimeoutError, SandboxError) as error:
            code, reason = -1, str(error) or "timed out"
        else:
            reason = f"exit code {code}"
        finally:
            os.close(null)
        if code != 0:
            self._report("Warning", "FailedPreStopHook", f"PreStopHook failed: {reason}")

    async def _run_once(self) -> Terminated | None:
        """One run of the container; None if the pod was terminated before it started."""
        launch = await self._prepare()
        if launch is None:
            return None
        created = self._context.now()
        container_id = self._container_id()
        self._runs += 1
        if self._runs == 1:
            for event in self._context.containers.ignored(self.spec):
                self._report(*event)
        try:
            exit_status = await self._execute(launch, container_id)
            await asyncio.wait({launch.collector.done}, timeout=_LOG_DRAIN_TIMEOUT)
        finally:
            self._close_log(launch)
        started = self.state.state.since if isinstance(self.state.state, Running) else created
        ended = self._terminated(exit_status, started, launch, container_id)
        if exit_status.start_error:
            self._report("Warning", "Failed", f"Error: {ended.message}")
        self._set_state(ended, launch, container_id, ready=self._init and ended.code == 0, started=False)
        return ended

    def _close_log(self, launch: Launch) -> None:
        if launch.collector.close():
            message = "A process outside the container still has its output open; what it writes from now on is lost"
            self._report("Warning", "LogHeldOpen", message)

    def _set_state(
        self, state: Running | Terminated, launch: Launch, container_id: str, *, ready: bool, started: bool
    ) -> None:
        """Enters the state of a run; the outcome of the previous run becomes `lastState`."""
        self.update_state(
            state=state,
            last=self.state.outcome or self.state.last,
            restarts=self._runs - 1,
            container_id=container_id,
            image_id=launch.image.shown,
            ready=ready,
            started=started,
        )

    async def _execute(self, launch: Launch, container_id: str) -> Exit:
        """Starts the process, and runs its probes and waits for termination requests until it has ended."""
        containers = self._context.containers
        try:
            process = await containers.start(self._pod.obj, self.spec, launch.command, *launch.outputs)
        except OSError as error:
            return Exit(CANNOT_START, str(error))
        finally:
            for fd in launch.outputs:
                os.close(fd)
        self._process = process
        try:
            if await process.started:
                self._on_started(launch, container_id)
                async with asyncio.TaskGroup() as tasks:
                    watchers = [
                        tasks.create_task(ProbeManager(self._context, self._pod, self, process).run()),
                        tasks.create_task(self._stop_on_signal()),
                    ]
                    await asyncio.wait({process.ended})
                    for task in watchers:
                        task.cancel()
            return await process.ended
        finally:
            process.abandon()
            self._process = None

    def _on_started(self, launch: Launch, container_id: str) -> None:
        """Enters Running; the container is ready at once only if it has neither a startup nor a readiness probe."""
        self._report("Normal", "Started", f"Started container {self.spec['name']}")
        probed_at_start, probed = bool(self.spec.get("startupProbe")), bool(self.spec.get("readinessProbe"))
        ready = not probed_at_start and not probed and not self._init
        self._set_state(Running(self._context.now()), launch, container_id, ready=ready, started=not probed_at_start)

    async def _prepare(self) -> Launch | None:
        """Prepares a run, with retries; None if the pod was terminated before that succeeded."""
        delay = self._context.timing.retry_initial
        if (image := await self._image.find()) is None:
            return None
        while not (self._stop.is_set or self._pod.resetting):
            try:
                return await self._try_to_prepare(image)
            except (ConfigError, VolumeError, ApiError, OSError) as error:
                message = str(error)
            except MALFORMED_OBJECT_ERRORS as error:
                message = f"malformed container: {error!r}"
            self._show_waiting(Waiting("CreateContainerConfigError", message))
            self._report("Warning", "Failed", f"Error: {message}")
            if await self._pause(delay):
                return None
            delay = min(2 * delay, self._context.timing.retry_limit)
        return None

    def _show_waiting(self, state: Waiting) -> None:
        self.update_state(state=state, last=self.state.outcome, ready=False)

    async def _try_to_prepare(self, image: Image) -> Launch | None:
        sources = await self._context.fetch(references(self.spec), self._pod.obj["metadata"].get("namespace", ""))
        environment = container_environment(self._pod.obj, self.spec, sources, self._pod.placement)
        if (words := self._context.containers.words(self.spec, environment)) is None:
            await self._wait_without_command()
            return None
        log = self._context.logs.start_run(self._pod.obj["metadata"], self.spec["name"], self._runs)
        collector = LogCollector(log, self._context.clock, self._report_log_loss)
        try:
            termination_log = log.path.with_name("termination-log")
            termination_log.unlink(missing_ok=True)  # the previous run may have replaced it, for example by a link
            os.close(private_files.open_file(termination_log, os.O_WRONLY | os.O_EXCL))
            if self._context.containers.has_users:
                termination_log.chmod(0o666)  # nobody else finds it: its folder is private
            return Launch(
                replace(self._build_command(*words, environment, termination_log), image=image.id),
                image,
                log,
                termination_log,
                collector,
                collector.open(),
            )
        except BaseException:
            collector.close()
            raise

    def _report_log_loss(self, reason: str) -> None:
        self._report("Warning", "LogLinesLost", f"Container output is being lost: {reason}")

    def _build_command(
        self, argv: Sequence[str], entry: int, environment: dict[str, str], termination_log: Path
    ) -> Command:
        """The command with environment, working directory and mounts; in mode `addresses` with names replaced.

        Variables from `fieldRef` and `_IDENTITY` are not rewritten: they hold the pod's identity.
        """
        pod, context = self._pod.obj, self._context
        message_path = self.spec.get("terminationMessagePath") or TERMINATION_LOG
        mounts = [*self._pod.mounts(self.spec, environment), Mount(message_path, str(termination_log))]
        hostname = pod["spec"].get("hostname") or pod["metadata"]["name"]
        own = {"HOSTNAME": hostname[:63], **self._pod.variables, **environment}
        own |= context.devices.variables(pod["metadata"]["uid"], self.spec["name"], environment)
        if context.runtime.network == "addresses":
            own[POD_UID] = pod["metadata"]["uid"]
        directory = self.spec.get("workingDir") or context.working_directory
        command = Command(argv, {**context.environment, **own}, directory, mounts, entry)
        if context.runtime.network == "addresses":
            address_of = context.address_of(pod["metadata"].get("namespace", ""), pod["metadata"])
            fields = (one["name"] for one in self.spec.get("env") or () if (one.get("valueFrom") or {}).get("fieldRef"))
            paths = not context.containers.has_mounts
            command = rewrite_command(command, address_of, {*_IDENTITY, *fields}, paths=paths)
        return command

    async def _wait_without_command(self) -> None:
        """Waits for the pod's termination: a container without a command can never start, and specs are immutable."""
        message = NO_COMMAND.format(image=self.spec.get("image") or "")
        self.update_state(state=Waiting("CreateContainerError", message))
        self._report("Warning", "Failed", f"Error: {message}")
        while not await self._pause(3600):
            pass

    async def _pause(self, seconds: float | None) -> bool:
        """Waits until the pod terminates or restarts in place, at most `seconds`; returns whether it does."""
        ends = {asyncio.ensure_future(self._stop.wait()), asyncio.ensure_future(self._pod.wait_for_reset())}
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        return self._stop.is_set or self._pod.resetting

    async def _back_off(self, ended: Terminated) -> bool:
        """Waits before a restart; returns True if the pod was terminated meanwhile.

        The first restart is immediate and the delay then doubles. A run longer than twice the limit resets the delay.
        """
        timing = self._context.timing
        if (ended.finished - ended.started).total_seconds() > 2 * timing.backoff_limit:
            self._delay = 0.0
        if self._delay and not self._stop.is_set:
            pod = self._pod.obj["metadata"]
            subject = f"restarting failed container={self.spec['name']} pod={pod['name']}_{pod.get('namespace', '')}"
            waiting = Waiting("CrashLoopBackOff", f"back-off {self._delay:g}s {subject}({pod['uid']})")
            self.update_state(state=waiting, last=ended, ready=False)
            message = f"Back-off restarting failed container {self.spec['name']} in pod {pod['name']}({pod['uid']})"
            self._report("Warning", "BackOff", message)
            await self._pause(self._delay)
        self._delay = min(2 * self._delay or timing.backoff_initial, timing.backoff_limit)
        return self._stop.is_set or self._pod.resetting

    def _terminated(self, exit_status: Exit, started: datetime, launch: Launch, container_id: str) -> Terminated:
        now = self._context.now()
        if message := exit_status.start_error:
            if exit_status.unexplained:
                message = last_lines(launch.log, 1, _REASON_SIZE).strip() or message
            reason = "StartError" if exit_status.code == CANNOT_START else "ContainerCannotRun"
            return Terminated(exit_status.code, reason, started, now, message, container_id)
        fall_back = bool(exit_status.code) and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        message = termination_message(launch.termination_log, launch.log if fall_back else None)
        return Terminated(exit_status.code, exit_status.reason, started, now, message, container_id)

    def _report(self, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        self._context.record_event(self._pod.obj, type_, reason, message, self.spec)

    def _container_id(self) -> str:
        """A unique ID per run, in the API's format `<runtime>://<id>`."""
        run = f"{self._pod.obj['metadata']['uid']}/{self.spec['name']}/{self._runs}"
        return f"{self._context.containers.scheme}://{hashlib.sha256(run.encode()).hexdigest()}"


def _restarts(policy: str, code: int) -> bool:
    return policy == "Always" or (policy == "OnFailure" and code != 0)
