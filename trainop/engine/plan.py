"""Planning: from one snapshot to one `Plan`, the flow that all frameworks share (training-operator `ReconcileJobs`).

In order: a finished job is cleaned up; an invalid one is failed; a suspended one loses its pods. Any other job is
assessed (`assess`): it succeeds, exceeds a limit or fails, or else its replicas are restarted, removed and created
until they match the spec. Pure: time and settings are part of the snapshot.
"""

from __future__ import annotations

from dataclasses import replace

from trainop.engine.actions import DeleteJob, Plan
from trainop.engine.addresses import settle_mode
from trainop.engine.admission import find_errors
from trainop.engine.assess import Assessment, assess_job
from trainop.engine.children import Arrangement, claim, find_surplus, join_names
from trainop.engine.evidence import explain_end, find_root_cause
from trainop.engine.extensions import RESTART_MODE
from trainop.engine.failures import FatalFailure, Limit, seconds_to_live
from trainop.engine.fields import sentence
from trainop.engine.framework import Framework, Progress, selector
from trainop.engine.in_place import settle_mode as settle_restart_mode
from trainop.engine.leaders import missing_leaders
from trainop.engine.parse import ignored, parse
from trainop.engine.restart_history import RESTARTS, RestartHistory
from trainop.engine.root_cause import LAST_FAILURE, Failure, refusal
from trainop.engine.seen import Snapshot, UnreadablePod
from trainop.engine.startup import STARTUP_DEADLINE, find_unstarted
from trainop.engine.status import CREATED, FAILED, GANG_READY, RESTARTS_IN_PLACE, RUNNING, SUCCEEDED, SUSPENDED
from trainop.engine.steps.builder import ReplicasBuilder
from trainop.engine.steps.checkpoints import AWAITED, await_checkpoint, may_await_checkpoint
from trainop.engine.steps.companions import reconcile_companions
from trainop.engine.steps.gang import GangStep, disband
from trainop.engine.steps.in_place import follow_in_place
from trainop.engine.steps.replicas import create_missing, grace_after_success, own_grace, remove_surplus, sweep
from trainop.engine.steps.restarts import count_disruptions, count_failed_pods, is_restart_pending, restart
from trainop.engine.steps.rights import are_blocked, begin_withdrawal, settle_rights
from trainop.engine.steps.symptoms import check_stuck, notice_symptoms
from trainop.engine.waiting import INVALID_LABELS, INVALID_SPEC, NO_LEADER

__all__ = ["ignored", "plan", "reject"]

VALIDATION = "FailedValidation"


def plan(framework: Framework, seen: Snapshot) -> Plan:
    """Plans one reconcile. Pure, and never raises, whatever the job contains."""
    if ignored(seen.job, framework.managers):
        return Plan()
    if seen.job.metadata.terminating:
        withdrawal = begin_withdrawal(framework, seen)
        return Plan() if withdrawal is None else complete(withdrawal)
    builder = begin(framework, seen)
    job, status = builder.job, builder.status
    check_stuck(builder, builder.children.pods.owned, builder.children.pods.being_removed.values())
    if status.finished:
        return _tidy_up(builder)
    _note_creation(builder)
    begun = status.start_time is not None or builder.begun
    if not begun and (problem := _find_fatal_errors(builder)):
        return _refuse(builder, problem)
    if not job.run_policy.suspend:
        return _proceed(builder)
    return (_await_checkpoint(builder) if may_await_checkpoint(builder) else None) or _suspend(builder)


def reject(framework: Framework, seen: Snapshot, message: str) -> Plan:
    """Plans the failure of a job because the API server refused one of its manifests with `message`."""
    builder = begin(framework, seen)
    if builder.status.finished:
        return Plan()
    _note_creation(builder)
    return _refuse(builder, message)


def complete(builder: ReplicasBuilder, *, status_first: bool = False, waits: bool = False) -> Plan:
    """The plan that was built, with the rights of the job's account."""
    if grant := builder.grant:
        settle_rights(builder, grant)
    return builder.plan(status_first=status_first, waits=waits)


def begin(framework: Framework, seen: Snapshot) -> ReplicasBuilder:
    """What a plan starts from: the job, parsed, and its children."""
    job = parse(framework, seen.job)
    if RESTART_MODE in job.metadata.annotations:
        job = settle_restart_mode(framework, job, seen)
    children = claim(framework, job, seen)
    pods = (*children.pods.owned, *children.pods.orphans.values())
    return ReplicasBuilder(framework, settle_mode(framework, job, seen.options, pods), seen, children)


def _find_fatal_errors(builder: ReplicasBuilder) -> str:
    """The errors that keep the job from ever running, as one sentence; empty if there are none."""
    errors = find_errors(builder.job, lambda: builder.manifests)
    return sentence(errors, builder.job.more_errors) if errors else ""


def _describe_errors(builder: ReplicasBuilder) -> str:
    """The validation errors of the job as one sentence; empty if there are none."""
    return sentence(builder.job.errors, builder.job.more_errors) if builder.job.errors else ""


def _note_creation(builder: ReplicasBuilder) -> None:
    if builder.status.set(CREATED, builder.reason(CREATED), f"{builder.framework.kind} {builder.job.name} is created."):
        builder.count("created")


# Finished -------------------------------------------------------------------------------------------------------------


def _tidy_up(builder: ReplicasBuilder) -> Plan:
    """A finished job is cleaned up, and deleted after its time to live."""
    job, status = builder.job, builder.status
    if status.is_true(SUCCEEDED):
        status.retire_active(into="succeeded")
    left = None if job.run_policy.suspend else seconds_to_live(job, status, builder.seen.now)
    if left is not None and left <= 0:
        builder.actions = [DeleteJob()]
    else:
        builder.requeue_after(left)
        _clean_up(builder, abrupt=_ended_abruptly(builder))
    return complete(builder)


def _finish(builder: ReplicasBuilder, *, abrupt: bool = False) -> Plan:
    """Completes a plan that has set a terminal condition. The status is written before the clean-up. `abrupt`: see
    `_clean_up`."""
    builder.status.complete()
    builder.status.clear_counters(builder.framework.support_roles)
    if builder.status.is_true(SUCCEEDED):
        builder.status.retire_active(into="succeeded")
    elif abrupt or builder.job.run_policy.clean_pod_policy != "None":
        builder.status.retire_active()  # the running pods are deleted
    left = seconds_to_live(builder.job, builder.status, builder.seen.now)
    builder.requeue_after(left)
    _clean_up(builder, abrupt=abrupt)
    return complete(builder, status_first=True)


def _clean_up(builder: ReplicasBuilder, *, abrupt: bool) -> None:
    """Deletes what `cleanPodPolicy` does not keep. With `abrupt`, a limit or a refusal ended the job while pods were
    running; these are deleted under every policy."""
    policy = builder.job.run_policy.clean_pod_policy
    if policy != "All" and abrupt:
        policy = "Running"
    children = builder.children
    surplus = find_surplus(builder.job, (*children.pods.owned, *children.services.owned))
    succeeded = builder.status.is_true(SUCCEEDED)
    builder.actions += sweep(children, policy, surplus, grace_after_success(builder.job) if succeeded else own_grace)
    disband(builder, builder.framework.companion_kinds)


def _ended_abruptly(builder: ReplicasBuilder) -> bool:
    """Whether an earlier reconcile failed the job because of a limit or a refusal."""
    failed = builder.status.find(FAILED) or {}
    if failed.get("status") != "True":
        return False
    stopped = RestartHistory(builder.job.metadata.uid, builder.job.metadata.annotations).stopped
    return bool(stopped) or failed.get("reason") == builder.reason(VALIDATION)


def _succeed(builder: ReplicasBuilder, progress: Progress) -> Plan:
    if progress.running:
        _set_running(builder)
    text = builder.fill(builder.framework.texts(builder.job).succeeded)
    builder.status.set(SUCCEEDED, builder.reason(SUCCEEDED), text)
    builder.event(builder.reason(SUCCEEDED), text)
    builder.count("successful")
    return _finish(builder)


def _fail(
    builder: ReplicasBuilder, text: str, *, reason: str = FAILED, event_type: str = "Normal", abrupt: bool = False
) -> Plan:
    text = builder.with_cause(text)
    builder.status.set(FAILED, builder.reason(reason), text)
    builder.event(builder.reason(reason), text, event_type)
    builder.count("failed")
    return _finish(builder, abrupt=abrupt)


def fail_at_limit(builder: ReplicasBuilder, limit: Limit, history: RestartHistory) -> Plan:
    """Fails the job and deletes its pods. The annotation makes later reconciles continue with the deletion."""
    history.stopped = limit.value
    builder.annotations[RESTARTS] = history.text(builder.children.pods.uids())
    builder.status.retire_active()
    return _fail(builder, limit.message.format(builder.job.name), abrupt=True)


def _fail_because(builder: ReplicasBuilder, fatal_failure: FatalFailure, progress: Progress) -> Plan:
    type_ = fatal_failure.role.type
    evicted = fatal_failure.evicted
    if evicted and (text := builder.framework.eviction(builder.job, fatal_failure.role, evicted)):
        return _fail(builder, text, reason="Evicted", event_type="Warning")
    if fatal_failure.exit_code:
        text = f'job "{builder.job.name}" is failing because "{type_}" replica(s) failed.'
        return _fail(builder, text, event_type="Warning")
    if progress.running:
        _set_running(builder)
    return _fail(
        builder, builder.fill(builder.framework.texts(builder.job).failed, count=fatal_failure.count, role=type_)
    )


def _refuse(builder: ReplicasBuilder, problem: str) -> Plan:
    """Fails a job that can never run, such as an invalid one. Its message is the cause already."""
    builder.status.retire_active()
    builder.status.put(LAST_FAILURE, refusal(VALIDATION, problem, builder.seen.now).as_json())
    return _fail(builder, _validation_text(builder, problem), reason=VALIDATION, event_type="Warning", abrupt=True)


def _validation_text(builder: ReplicasBuilder, problem: str) -> str:
    return f"{builder.framework.kind} failed validation because {problem}"


# Suspension -----------------------------------------------------------------------------------------------------------


def _await_checkpoint(builder: ReplicasBuilder) -> Plan | None:
    """A job that is to be suspended runs on until its next checkpoint, as long as nothing else happens to it."""
    found = _look(builder)
    if found.progress.succeeded:
        return _succeed(builder, found.progress)
    if found.limit is not None:
        builder.blame(_find_cause(builder, found))
        return fail_at_limit(builder, found.limit, found.history)
    if found.findings.found or found.burst or not found.progress.running or not await_checkpoint(builder):
        return None
    builder.requeue_after(found.deadline_in)
    return builder.plan()


def _suspend(builder: ReplicasBuilder) -> Plan:
    """Deletes all pods and services, whatever the clean-up policy; startTime is kept.

    The status is written first: if the job were resumed in between, its terminating pods would count as failures.
    """
    status, reason = builder.status, builder.reason(SUSPENDED)
    builder.actions += sweep(builder.children, "All")
    disband(builder, builder.framework.companion_kinds)
    status.retire_active()
    text = f"{builder.framework.kind} {builder.job.name} is suspended."
    if status.is_true(RUNNING):
        status.set(RUNNING, reason, text, status="False")
    changed = status.set(SUSPENDED, reason, text)
    if changed:
        builder.event(reason, text)
    else:
        builder.drop_annotation(AWAITED)
    return complete(builder, status_first=changed)


def _wait_for_old_pods(builder: ReplicasBuilder) -> Plan:
    """A resumed job stays suspended until its old pods are gone, so that their end does not count as a failure."""
    builder.actions += sweep(builder.children, "All")
    return complete(builder, waits=True)


def _resume(builder: ReplicasBuilder) -> None:
    reason, text = builder.reason("Resumed"), f"{builder.framework.kind} {builder.job.name} is resumed."
    builder.status.set(SUSPENDED, reason, text, status="False")
    builder.event(reason, text)
    builder.status.forget_start()
    builder.drop_annotation(RESTARTS)


# Running --------------------------------------------------------------------------------------------------------------


def _proceed(builder: ReplicasBuilder) -> Plan:
    """Continues a job that is neither finished nor suspended. The status of a resumed job is written first: while it
    says Suspended, pods count as those from before the suspension."""
    builder.drop_annotation(AWAITED)
    resumed = builder.status.is_true(SUSPENDED)
    if resumed:
        if builder.children.pods.owned or builder.children.pods.orphans:
            return _wait_for_old_pods(builder)
        _resume(builder)
    if builder.job.errors:
        identity = f"validation/{builder.job.metadata.generation}"
        builder.warn(identity, builder.reason(VALIDATION), _validation_text(builder, _describe_errors(builder)))
    following = _advance(builder)
    return replace(following, status_first=True) if resumed else following


def _advance(builder: ReplicasBuilder) -> Plan:
    """Decides by the assessment: success, limit, failure, or restarts and scaling."""
    framework, job, status = builder.framework, builder.job, builder.status
    gang = _gang(builder)
    found = _look(builder)
    job = builder.job
    if found.progress.succeeded and not found.findings.together:
        return _succeed(builder, found.progress)
    builder.blame(_find_cause(builder, found))
    count_failed_pods(builder, found)
    count_disruptions(builder, found)
    if found.limit is not None:
        return fail_at_limit(builder, found.limit, found.history)
    if found.findings.fatal_failures:
        return _fail_because(builder, found.findings.fatal_failures[0], found.progress)
    if job.readable:
        gated = not _write_companions(builder, gang, complete=all(slots.full for slots in found.role_slots))
        _restart(builder, found)
        remove_surplus(builder, found)
        create_missing(builder, found, gated=gated)
    elif not found.progress.running:
        builder.wait(INVALID_SPEC, _validation_text(builder, _describe_errors(builder)))
    if not found.progress.running and (missing := missing_leaders(framework, job)):
        text = f"No replica of {framework.kind} {job.name} decides when it has ended"
        builder.wait(NO_LEADER, text, f"it lacks {' or '.join(missing)}")
    if found.progress.running and not found.findings.restarts and not is_restart_pending(builder, found):
        _set_running(builder)
    write_history(builder, found.history)
    builder.requeue_after(found.deadline_in)
    if status.start_time is not None and STARTUP_DEADLINE in job.metadata.annotations:
        builder.unstarted = find_unstarted(job, found.role_slots, builder.actions)
    return complete(builder, waits=True)


def _gang(builder: ReplicasBuilder) -> GangStep | None:
    """The PodGroup of a job with readable roles under a gang scheduler. The job starts here unless its pods have to
    wait: the deadline does not run in a queue."""
    scheduler, status = builder.seen.options.gang, builder.status
    gang = GangStep(builder, builder.job, scheduler) if scheduler is not None and builder.job.readable else None
    if status.start_time is None and (gang is None or gang.formed or builder.children.has_pods):
        status.start()
    return gang


def _write_companions(builder: ReplicasBuilder, gang: GangStep | None, *, complete: bool) -> bool:
    """Writes the PodGroup and the other companions; returns whether pods may be created. `complete`: no pod is
    missing."""
    framework = builder.framework
    kinds = framework.companion_kinds
    asked = framework.companions(builder.job, builder.seen) if kinds else ()
    if gang is not None:
        kinds, asked = (*gang.kinds, *kinds), (*gang.form(complete=complete), *asked)
    else:
        builder.status.remove(GANG_READY)  # gang scheduling may have been on before
    if not reconcile_companions(builder, kinds, asked):
        return False
    grant = builder.grant
    return grant is None or not are_blocked(builder, grant)


def _restart(builder: ReplicasBuilder, found: Assessment) -> None:
    restart(builder, found)
    if builder.job.extensions.in_place or builder.status.find(RESTARTS_IN_PLACE) is not None:
        follow_in_place(builder, found)


def _look(builder: ReplicasBuilder) -> Assessment:
    """Assesses the pods and records their counters."""
    framework, job, status = builder.framework, builder.job, builder.status
    resumed = RESTARTS in builder.annotations
    found = assess_job(framework, job, builder.children, builder.seen, status, resumed=resumed)
    builder.job = job = found.job
    labels = selector(framework, job.name) if framework.scale else None
    status.record(found.tallies, keep=not job.readable, labels=labels)
    _notice(builder, found.arrangement)
    return found


def _find_cause(builder: ReplicasBuilder, found: Assessment) -> Failure | None:
    """The root cause of failures and restarts, or of the end at a limit without any."""
    job, now, remembered = builder.job, builder.seen.wall or builder.seen.now, builder.remembered
    cause = find_root_cause(builder.framework, job, found, remembered, now)
    return explain_end(job, found, cause, remembered, now)


def write_history(builder: ReplicasBuilder, history: RestartHistory) -> None:
    """Writes the history of a job that continues. A limit that an earlier reconcile recorded without being able to
    write the condition is removed."""
    if history.changed or history.stopped:
        history.stopped = ""
        builder.annotations[RESTARTS] = history.text(builder.children.pods.uids())


def _set_running(builder: ReplicasBuilder) -> None:
    texts, reason = builder.framework.texts(builder.job), builder.reason(RUNNING)
    if builder.status.set(RUNNING, reason, builder.fill(texts.running)) and texts.running_event:
        builder.event(reason, builder.fill(texts.running_event))


def _notice(builder: ReplicasBuilder, arrangement: Arrangement) -> None:
    builder.notices += notice_symptoms(builder.children.pods.owned, builder.job.roles)
    for pod in builder.children.pods.owned:
        if isinstance(pod, UnreadablePod):
            builder.warn_unreadable("Pod", pod.metadata.name, pod.fault)
    if invalid := arrangement.pods_without_slot:
        named = join_names(pod.metadata for pod in invalid)
        text = "Not counted and not replaced, as their labels replica-type and replica-index name no replica"
        builder.warn("labels", "InvalidReplicaLabels", f"{text}: {named}", holds_up=INVALID_LABELS)
    for claimed, kind in ((builder.children.pods, "Pod"), (builder.children.services, "Service")):
        if claimed.unexpected:
            text = f"Not made for {builder.framework.kind} {builder.job.name}, so ignored although they have its labels"
            builder.warn(f"strangers/{kind}", f"Unexpected{kind}s", f"{text}: {join_names(claimed.unexpected)}")
