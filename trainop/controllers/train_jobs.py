"""The controller of TrainJobs: makes one job of each, and shows its state in the TrainJob.

The job is an ordinary PyTorchJob, JAXJob or MPIJob with the name of the TrainJob; its own controller does the rest.
Where Kubeflow Trainer is installed, nothing is done at all.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import structlog

from trainop.engine.fields import Fields, as_object, sentence
from trainop.engine.kind import Kind
from trainop.kinds.trainjob.names import (
    CLUSTER_RUNTIMES,
    MARK,
    RUNTIMES,
    SPEC_HASH,
    SUSPENDED_AS,
    THIS_CONTROLLER,
    TRAIN_JOBS,
)
from trainop.kinds.trainjob.status import is_finished, next_status
from trainop.kinds.trainjob.translate import Child, Refusal, translate
from trainop.runtime import (
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    AlreadyExistsError,
    ApiError,
    Client,
    Clock,
    ConflictError,
    Context,
    Controller,
    ForbiddenError,
    Json,
    NotFoundError,
    OperatorParts,
    Result,
    Unstructured,
    Watch,
    decode_unstructured,
)
from trainop.runtime.lowlevel import ControllerBuilder, Request, merge_patch_between

NAME = "trainjob-controller"
LOOK_AGAIN = 30.0
"""Seconds until a runtime that is missing is looked for again: runtimes are read, and not watched."""
AFTER_CONFLICT = 0.2
AFTER_NAMESAKE = 1.0
"""Seconds until the job of a deleted TrainJob of the same name is looked at again."""
MAX_TOLD = 10_000
"""TrainJobs of which it is remembered what was said of them."""
CHANGE_IGNORED = (
    "The TrainJob or its runtime has changed, and the job runs as it was made: set spec.suspend to true and back to"
    " false to run it as it is now, or create another TrainJob"
)
CHECKED_FOR = 30.0
"""Seconds for which it is known whose CRDs are installed."""
TRAINER_WEBHOOKS = "validator.trainer.kubeflow.org"
"""The name of Kubeflow Trainer's webhook configuration (trainer `manifests/base/webhook`, `charts`)."""

log = structlog.get_logger(__name__)


class Guard:
    """Whether TrainJobs are this operator's: not those of Kubeflow Trainer."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._checked = float("-inf")
        self._reason = ""

    async def reason(self) -> str:
        """Why TrainJobs are left alone; empty: they are ours. Raises `ApiError` and `ConnectionError`."""
        if self._clock.monotonic() - self._checked > CHECKED_FOR:
            found = await self._find_reason()
            if found and found != self._reason:
                log.warning("TrainJobs are left alone", reason=found)
            self._reason, self._checked = found, self._clock.monotonic()
        return self._reason

    async def _find_reason(self) -> str:
        answer = await self._client.request(Request("GET", f"/apis/{TRAIN_JOBS.api_version}"))
        served = as_object(msgspec.json.decode(answer.body)).get("resources") or ()
        for resource in (TRAIN_JOBS, RUNTIMES, CLUSTER_RUNTIMES):
            found = next((each for each in served if each.get("name") == resource.plural), None)
            if found is not None and MARK not in (found.get("categories") or ()):
                return f"the CRD {resource} is not the one of trainop: Kubeflow Trainer is or was installed"
        try:
            await self._client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, TRAINER_WEBHOOKS)
        except (NotFoundError, ForbiddenError):  # an operator of one namespace has no right to ask
            return ""
        return f"the webhooks of Kubeflow Trainer are installed ({TRAINER_WEBHOOKS})"


class TrainJobs:
    """Reconciles TrainJobs. `children` are the kinds of jobs that may run them."""

    def __init__(self, children: Iterable[Kind]) -> None:
        self.watches = {each.resource: Watch(each.source, each.decode, optional=True) for each in children}
        self._guard: Guard | None = None
        self._told: dict[str, str] = {}
        self._compared: dict[str, int] = {}
        """UID -> generation of a changed TrainJob that was compared with its job."""

    async def reconcile(self, ctx: Context, job: Unstructured) -> Result | None:
        try:
            return await self._reconcile(ctx, job)
        except ConflictError:
            return Result(requeue_after=AFTER_CONFLICT)  # the caches will show what has changed

    async def _reconcile(self, ctx: Context, job: Unstructured) -> Result | None:
        spec = as_object(job.raw.get("spec"))
        manager = spec.get("managedBy")
        if job.metadata.terminating or (manager or THIS_CONTROLLER) != THIS_CONTROLLER:
            return None
        self._guard = self._guard or Guard(ctx.client, ctx.clock)
        if reason := await self._guard.reason():
            self._tell(ctx, job, "NotManaged", f"trainop leaves this TrainJob alone: {reason}")
            return Result(requeue_after=CHECKED_FOR)
        if is_finished(job.raw.get("status")):
            return None
        suspend = spec.get("suspend") is True
        child, refusal = await self._ensure(ctx, job, suspend=suspend)
        status = next_status(
            job.raw.get("status"), child.raw if child else None, refusal, suspend=suspend, now=ctx.clock.now()
        )
        if status != (job.raw.get("status") or {}):
            version = {"resourceVersion": job.metadata.resource_version}
            patch = {"metadata": version, "status": status}
            await ctx.client.patch(
                TRAIN_JOBS, job.metadata.name, job.metadata.namespace, patch, subresource="status", metadata_only=True
            )
        if refusal:
            self._tell(ctx, job, "TrainJobRefused", refusal)
            return Result(requeue_after=LOOK_AGAIN)
        return None if child is not None else Result(requeue_after=AFTER_NAMESAKE)

    async def _ensure(self, ctx: Context, job: Unstructured, *, suspend: bool) -> tuple[Unstructured | None, str]:
        """The job that runs the TrainJob, made or changed if need be; else why there is none."""
        existing = self._find(ctx, job)
        if existing is not None:
            return await self._change(ctx, job, existing, suspend=suspend), ""
        wanted = await self._plan(ctx, job)
        if isinstance(wanted, Refusal):
            return None, wanted.message
        return await self._create(ctx, job, wanted, suspend=suspend)

    def _find(self, ctx: Context, job: Unstructured) -> Unstructured | None:
        stores = (ctx.store(watch) for watch in self.watches.values())
        found = (store.get(job.metadata.key) for store in stores)
        return next((each for each in found if each is not None and _is_ours(each, job)), None)

    async def _plan(self, ctx: Context, job: Unstructured) -> Child | Refusal:
        found = await _read_runtime(ctx.client, job)
        if isinstance(found, Refusal):
            return found
        child = translate(job, found)
        if isinstance(child, Child) and child.resource not in self.watches:
            kind = child.resource.kind
            return Refusal(f"spec.runtimeRef: this runtime needs {kind}s: add --enable-scheme={kind} to the operator")
        return child

    async def _create(
        self, ctx: Context, job: Unstructured, child: Child, *, suspend: bool
    ) -> tuple[Unstructured | None, str]:
        name, namespace, kind = job.metadata.name, job.metadata.namespace, child.resource.kind
        source = self.watches[child.resource].resource
        manifest = child.manifest(job, suspend=suspend) | {"apiVersion": source.api_version}
        try:
            made = Unstructured(await ctx.client.create(source, manifest))
        except AlreadyExistsError:
            made = Unstructured(await ctx.client.get(source, name, namespace))
            if not _is_ours(made, job):
                if _is_of_namesake(made, job):
                    return None, ""  # the garbage collector deletes it
                return None, f"metadata.name: there is another {kind} {namespace}/{name}: choose another name"
            return made, ""
        except ApiError as error:
            if error.code in (400, 413, 422):
                return None, f"the API server refuses the {kind} made of this TrainJob: {error}"
            raise
        ctx.event(job, "Normal", "SuccessfulCreate", f"Created {kind}: {name}")
        return made, ""

    async def _change(self, ctx: Context, job: Unstructured, existing: Unstructured, *, suspend: bool) -> Unstructured:
        """Passes on `suspend`, and all other changes to a job that is suspended: it has no pods. Other changes of a
        TrainJob that runs have no effect, and an event says so; those of its runtime have none either."""
        new = dict(existing.raw)
        suspended = _is_suspended(existing)
        if suspended or self._is_edited(job):
            wanted = await self._plan(ctx, job)
            differs = isinstance(wanted, Refusal) or wanted.fingerprint != existing.metadata.annotations.get(SPEC_HASH)
            if suspended and differs and isinstance(wanted, Child):
                new = _with_content(new, wanted)
            elif differs and not suspend:
                self._tell(ctx, job, "ChangeIgnored", CHANGE_IGNORED)
        if existing.metadata.annotations.get(SUSPENDED_AS) != _word(suspend):
            new = _with_suspend(new, suspend=suspend)
        patch = merge_patch_between(existing.raw, new)
        if not patch:
            return existing
        patch = {**patch, "metadata": {**patch["metadata"], "resourceVersion": existing.metadata.resource_version}}
        source = next(watch.resource for each, watch in self.watches.items() if each.kind == existing.raw["kind"])
        return Unstructured(await ctx.client.patch(source, job.metadata.name, job.metadata.namespace, patch))

    def _is_edited(self, job: Unstructured) -> bool:
        """Whether the TrainJob has been changed since it was last compared with its job, or created."""
        uid, generation = job.metadata.uid, job.metadata.generation
        if generation <= 1 or self._compared.get(uid) == generation:
            return False
        if len(self._compared) >= MAX_TOLD:
            self._compared.clear()
        self._compared[uid] = generation
        return True

    def _tell(self, ctx: Context, job: Unstructured, reason: str, message: str) -> None:
        """A Warning, once for each text."""
        if self._told.get(job.metadata.uid) != message:
            if len(self._told) >= MAX_TOLD:
                self._told.clear()
            self._told[job.metadata.uid] = message
            ctx.event(job, "Warning", reason, message)


def train_job_controller(parts: OperatorParts, children: Iterable[Kind], workers: int) -> Controller:
    """The controller; `children` are the enabled kinds of jobs."""
    jobs = TrainJobs(children)
    watched = Watch(TRAIN_JOBS, decode_unstructured, optional=True)
    builder = ControllerBuilder(watched, (), {"name": NAME, "workers": workers})
    for watch in jobs.watches.values():
        builder.owns(watch)
    builder.reconcile(jobs.reconcile)
    return builder.open(Context(TRAIN_JOBS, parts, parts.recorder(NAME)), parts.rng)


async def _read_runtime(client: Client, job: Unstructured) -> Json | Refusal:
    at, reference = "spec.runtimeRef", as_object(as_object(job.raw.get("spec")).get("runtimeRef"))
    group, kind = reference.get("apiGroup") or TRAIN_JOBS.group, reference.get("kind") or CLUSTER_RUNTIMES.kind
    resource = next((each for each in (CLUSTER_RUNTIMES, RUNTIMES) if (each.group, each.kind) == (group, kind)), None)
    if resource is None:
        fields = Fields()
        fields.unsupported(at, f"{group} {kind}", tuple(f"{e.group} {e.kind}" for e in (CLUSTER_RUNTIMES, RUNTIMES)))
        return Refusal(sentence(fields.errors))
    name, namespace = reference.get("name"), job.metadata.namespace if resource.namespaced else None
    if not isinstance(name, str) or not name:
        return Refusal(f"{at}.name: Required value: must be the name of a {kind}")
    try:
        return await client.get(resource, name, namespace)
    except NotFoundError:
        where = f"in namespace {namespace}" if namespace else "in the cluster"
        return Refusal(f"{at}.name: there is no {kind} {name} {where}; kubectl get {resource.plural} lists them")
    except ForbiddenError as error:
        return Refusal(f"{at}: the operator has no right to read {kind}s, only to a TrainingRuntime: {error}")


def _is_ours(found: Unstructured, job: Unstructured) -> bool:
    owner = found.metadata.controller
    return owner is not None and owner.uid == job.metadata.uid


def _is_of_namesake(found: Unstructured, job: Unstructured) -> bool:
    owner = found.metadata.controller
    return owner is not None and (owner.kind, owner.name) == (TRAIN_JOBS.kind, job.metadata.name)


def _is_suspended(found: Unstructured) -> bool:
    return as_object(as_object(found.raw.get("spec")).get("runPolicy")).get("suspend") is True


def _word(value: bool) -> str:  # it is what is written
    return str(value).lower()


def _with_content(raw: Json, child: Child) -> Json:
    """The job, made anew of its TrainJob; it stays suspended."""
    metadata = raw["metadata"]
    annotations = {**(metadata.get("annotations") or {}), **child.annotations, SPEC_HASH: child.fingerprint}
    labels = {**(metadata.get("labels") or {}), **child.labels}
    spec = {**child.spec, "runPolicy": {**child.spec["runPolicy"], "suspend": True}}
    return {**raw, "metadata": {**metadata, "labels": labels, "annotations": annotations}, "spec": spec}


def _with_suspend(raw: Json, *, suspend: bool) -> Json:
    metadata, spec = raw["metadata"], raw["spec"]
    annotations = {**(metadata.get("annotations") or {}), SUSPENDED_AS: _word(suspend)}
    run_policy = {**(spec.get("runPolicy") or {}), "suspend": suspend}
    return {**raw, "metadata": {**metadata, "annotations": annotations}, "spec": {**spec, "runPolicy": run_policy}}
