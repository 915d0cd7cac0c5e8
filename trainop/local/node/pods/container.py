"""One container of a pod from its first start to its last end, with restarts, probes and messages in between."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from trainop.local import private
from trainop.local.node.network.addresses import write_out
from trainop.local.node.pods.context import SHAPE_FAULTS, Kit
from trainop.local.node.pods.environment import (
    ConfigError,
    Surroundings,
    command_line,
    container_environment,
    references,
)
from trainop.local.node.pods.logreader import last_lines
from trainop.local.node.pods.logs import LogCollector, RunLog
from trainop.local.node.pods.probes import Probes
from trainop.local.node.pods.status import ContainerState, Running, Terminated, Waiting
from trainop.local.node.pods.stopping import StopSignal
from trainop.local.node.pods.volumes import VolumeError
from trainop.local.node.sandbox.filesystem import TERMINATION_LOG, Mount
from trainop.local.node.sandbox.sandbox import CANNOT_START, Command, ContainerProcess, Exit, SandboxError
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import Json

_MESSAGE_SIZE = 4096
_FALLBACK_LINES, _FALLBACK_SIZE = 80, 2048
_LINGER = 2.0  # seconds: how long somebody may hold a log open after the container has ended

NO_COMMAND = (
    'no command specified: images are not pulled here, so the entry point of "{image}" is not known; '
    "state `command` in the container"
)


class PodSide(Protocol):
    """What a container asks of its pod."""

    pod: Json
    here: Surroundings

    def mounts(self, container: Json, environment: dict[str, str]) -> list[Mount]: ...


@dataclass(frozen=True, slots=True)
class Launch:
    """One run that is about to begin; `outputs` are the container's ends of its log."""

    command: Command
    log: RunLog
    note: Path
    """The file for the termination message."""
    collector: LogCollector
    outputs: tuple[int, int]


class Container:
    """`state` is replaced, never changed; every replacement is told to `on_change`."""

    def __init__(
        self,
        kit: Kit,
        side: PodSide,
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
        self._kit = kit
        self._side = side
        self._stop = stop
        self._on_change = on_change
        self._init = init and not self.sidecar
        self._process: ContainerProcess | None = None
        self._runs = 0
        self._delay = 0.0
        self._told_of_image = False
        self.up = asyncio.Event()
        """Started and past its startup probe, or ended for good."""

    def change(self, **fields: object) -> None:
        fresh = replace(self.state, **fields)  # type: ignore[arg-type]  # names of ContainerState's fields
        if fresh != self.state:
            self.state = fresh
            if fresh.started:
                self.up.set()
            self._on_change()

    async def run(self, policy: str) -> None:
        """Until it has ended for good under the restart policy, or the pod stops."""
        try:
            while (ended := await self._run_once()) is not None and _restarts(policy, ended.code):
                if await self._back_off(ended):
                    return
        finally:
            self.up.set()

    async def stop(self, grace: float, why: str = "") -> None:
        """preStop, SIGTERM, and after `grace` seconds in all SIGKILL to everything."""
        process = self._process
        if process is None or process.ended.done():
            return
        self._kit.tell(self._side.pod, "Normal", "Killing", why or f"Stopping container {self.spec['name']}", self.spec)
        deadline = self._kit.clock.monotonic() + grace
        hook = ((self.spec.get("lifecycle") or {}).get("preStop") or {}).get("exec")
        if hook and grace > 0:
            await self._run_hook(process, hook["command"], grace)
        process.signal(signal.SIGTERM)
        await asyncio.wait({process.ended}, timeout=max(0.0, deadline - self._kit.clock.monotonic()))
        if not process.ended.done():
            process.kill()
            await process.ended

    def kill(self) -> None:
        """At once, whatever grace was promised."""
        if self._process is not None:
            self._process.kill()

    async def _stop_when_told(self) -> None:
        await self._stop.wait()
        await self.stop(self._stop.grace)

    async def _run_hook(self, process: ContainerProcess, argv: list[str], grace: float) -> None:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            async with asyncio.timeout(grace):
                code = await process.execute(argv, null, null, null)
        except (TimeoutError, SandboxError) as error:
            code, why = -1, str(error) or "timed out"
        else:
            why = f"exit code {code}"
        finally:
            os.close(null)
        if code != 0:
            self._kit.tell(self._side.pod, "Warning", "FailedPreStopHook", f"PreStopHook failed: {why}", self.spec)

    async def _run_once(self) -> Terminated | None:
        """One run; None if the pod stopped before it began."""
        launch = await self._prepare()
        if launch is None:
            return None
        begun = self._kit.now()
        identity = self._identity()
        self._runs += 1
        self._tell_of_image()
        try:
            result = await self._execute(launch, identity)
            await asyncio.wait({launch.collector.done}, timeout=_LINGER)
        finally:
            self._close_log(launch)
        started = self.state.state.since if isinstance(self.state.state, Running) else begun
        ended = self._terminated(result, started, launch, identity)
        if result.refusal:
            self._kit.tell(self._side.pod, "Warning", "Failed", f"Error: {result.refusal}", self.spec)
        self._enter(ended, identity, ready=self._init and ended.code == 0, started=False)
        return ended

    def _close_log(self, launch: Launch) -> None:
        if launch.collector.close():
            message = "A process outside the container still holds its output; what it writes from now on is lost"
            self._kit.tell(self._side.pod, "Warning", "LogHeldOpen", message, self.spec)

    def _enter(self, state: Running | Terminated, identity: str, *, ready: bool, started: bool) -> None:
        self.change(
            state=state,
            last=self.state.outcome or self.state.last,
            restarts=self._runs - 1,
            container_id=identity,
            ready=ready,
            started=started,
        )

    async def _execute(self, launch: Launch, identity: str) -> Exit:
        uid = self._side.pod["metadata"]["uid"]
        try:
            process = await self._kit.machine.start_container(uid, launch.command, *launch.outputs)
        except SandboxError as error:
            return Exit(CANNOT_START, str(error))
        finally:
            for fd in launch.outputs:
                os.close(fd)
        self._process = process
        try:
            if await process.started:
                self._announce(identity)
                async with asyncio.TaskGroup() as tasks:
                    beside = [
                        tasks.create_task(Probes(self._kit, self._side, self, process).run()),
                        tasks.create_task(self._stop_when_told()),
                    ]
                    await asyncio.wait({process.ended})
                    for task in beside:
                        task.cancel()
            return await process.ended
        finally:
            process.abandon()
            self._process = None

    def _announce(self, identity: str) -> None:
        self._kit.tell(self._side.pod, "Normal", "Started", f"Started container {self.spec['name']}", self.spec)
        probed_at_start, probed = bool(self.spec.get("startupProbe")), bool(self.spec.get("readinessProbe"))
        ready = not probed_at_start and not probed and not self._init
        self._enter(Running(self._kit.now()), identity, ready=ready, started=not probed_at_start)

    async def _prepare(self) -> Launch | None:
        """All that a run needs; retried until it can be had, None if the pod stops before."""
        delay = self._kit.timing.retry_initial
        while not self._stop.is_set:
            try:
                return await self._try_to_prepare()
            except (ConfigError, VolumeError, ApiError, OSError) as error:
                message = str(error)
            except SHAPE_FAULTS as error:
                message = f"not a container that can be understood: {error!r}"
            self.change(state=Waiting("CreateContainerConfigError", message), last=self.state.outcome, ready=False)
            self._kit.tell(self._side.pod, "Warning", "Failed", f"Error: {message}", self.spec)
            if await self._stop.pause(delay):
                return None
            delay = min(2 * delay, self._kit.timing.retry_limit)
        return None

    async def _try_to_prepare(self) -> Launch | None:
        sources = await self._kit.fetch(references(self.spec), self._side.pod["metadata"].get("namespace", ""))
        own = container_environment(self._side.pod, self.spec, sources, self._side.here)
        argv = command_line(self.spec, own)
        if not self.spec.get("command") and (not argv or argv[0].startswith("-")):
            await self._wait_in_vain()
            return None
        log = self._kit.logs.begin(self._side.pod["metadata"], self.spec["name"], self._runs)
        collector = LogCollector(log, self._kit.clock, self._report_loss)
        try:
            note = log.path.with_name("termination-log")
            note.unlink(missing_ok=True)  # the last run may have put anything in its place
            os.close(private.open_file(note, os.O_WRONLY | os.O_EXCL))
            return Launch(self._compose(argv, own, note), log, note, collector, collector.open())
        except BaseException:
            collector.close()
            raise

    def _report_loss(self, why: str) -> None:
        self._kit.tell(
            self._side.pod, "Warning", "LogLinesLost", f"What the container prints is lost: {why}", self.spec
        )

    def _compose(self, argv: list[str], own: dict[str, str], note: Path) -> Command:
        pod, kit = self._side.pod, self._kit
        mounts = self._side.mounts(self.spec, own)
        mounts.append(Mount(self.spec.get("terminationMessagePath") or TERMINATION_LOG, str(note)))
        directory = self.spec.get("workingDir") or kit.working_directory
        hostname = pod["spec"].get("hostname") or pod["metadata"]["name"]
        command = Command(argv, {**kit.environment, "HOSTNAME": hostname[:63], **own}, directory, mounts)
        if kit.machine.network == "addresses":
            address_of = kit.address_of(pod["metadata"].get("namespace", ""), pod["metadata"])
            told = [one["name"] for one in self.spec.get("env") or () if (one.get("valueFrom") or {}).get("fieldRef")]
            command = write_out(command, address_of, {"HOSTNAME", *told})
        return command

    async def _wait_in_vain(self) -> None:
        """Without a command it can never start; only another pod could."""
        message = NO_COMMAND.format(image=self.spec.get("image") or "")
        self.change(state=Waiting("CreateContainerError", message))
        self._kit.tell(self._side.pod, "Warning", "Failed", f"Error: {message}", self.spec)
        while not await self._stop.pause(3600):
            pass

    async def _back_off(self, ended: Terminated) -> bool:
        """The first restart is immediate; each further one waits longer, unless the run lasted. True: no restart."""
        timing = self._kit.timing
        if (ended.finished - ended.started).total_seconds() > 2 * timing.backoff_limit:
            self._delay = 0.0
        if self._delay and not self._stop.is_set:
            pod = self._side.pod["metadata"]
            what = f"restarting failed container={self.spec['name']} pod={pod['name']}_{pod.get('namespace', '')}"
            waiting = Waiting("CrashLoopBackOff", f"back-off {self._delay:g}s {what}({pod['uid']})")
            self.change(state=waiting, last=ended, ready=False)
            told = f"Back-off restarting failed container {self.spec['name']} in pod {pod['name']}({pod['uid']})"
            self._kit.tell(self._side.pod, "Warning", "BackOff", told, self.spec)
            await self._stop.pause(self._delay)
        self._delay = min(2 * self._delay or timing.backoff_initial, timing.backoff_limit)
        return self._stop.is_set

    def _terminated(self, result: Exit, started: datetime, launch: Launch, identity: str) -> Terminated:
        now = self._kit.now()
        if result.refusal:
            reason = "StartError" if result.code == CANNOT_START else "ContainerCannotRun"
            return Terminated(result.code, reason, started, now, result.refusal, identity)
        message = ""
        with suppress(OSError):  # a container may do with its file what it likes
            message = private.read_start(launch.note, _MESSAGE_SIZE).decode(errors="replace")
        if not message and result.code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = last_lines(launch.log, _FALLBACK_LINES, _FALLBACK_SIZE)
        return Terminated(result.code, "Error" if result.code else "Completed", started, now, message, identity)

    def _tell_of_image(self) -> None:
        if not self._told_of_image and self.spec.get("image"):
            self._told_of_image = True
            message = f'Image "{self.spec["image"]}" is not used: the container runs in the environment of this machine'
            self._kit.tell(self._side.pod, "Normal", "ImageNotUsed", message, self.spec)

    def _identity(self) -> str:
        run = f"{self._side.pod['metadata']['uid']}/{self.spec['name']}/{self._runs}"
        return f"host://{hashlib.sha256(run.encode()).hexdigest()}"


def _restarts(policy: str, code: int) -> bool:
    return policy == "Always" or (policy == "OnFailure" and code != 0)
