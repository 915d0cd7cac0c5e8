"""Planning: from one snapshot to one `Plan`, the flow that all frameworks share (training-operator `ReconcileJobs`).

In order: a finished job is cleaned up; an invalid one is failed; a suspended one loses its pods. Any other job is
assessed (`assess`): it succeeds, exceeds a limit or fails, or else its replicas are restarted, removed and created
until they match the spec. Pure: time and settings are part of the snapshot.
"""

from __future__ import annotations

from dataclasses import replace

from trainop.engine.actions import DeleteJob, Plan
from trainop.engine.admission import find_errors
from trainop.engine.assess import Assessment, assess_job
from trainop.engine.claim import claim, join_names
from trainop.engine.failures import FatalFailure
from trainop.engine.fields import sentence
from trainop.engine.framework import Framework, Progress
from trainop.engine.limits import Limit, seconds_to_live
from trainop.engine.parse import ignored, parse
from trainop.engine.restart_history import RESTARTS, RestartHistory
from trainop.engine.seen import Snapshot, UnreadablePod
from trainop.engine.service_modes import settle_mode
from trainop.engine.slots import Arrangement, find_surplus
from trainop.engine.status import CREATED, FAILED, RESTARTING, RUNNING, SUCCEEDED, SUSPENDED
from trainop.engine.steps.builder import PlanBuilder
from trainop.engine.steps.cleanup import sweep
from trainop.engine.steps.companions import reconcile_companions
from trainop.engine.steps.gang import GangStep, disband_gang
from trainop.engine.steps.replicas import create_missing, remove_surplus
from trainop.engine.steps.restarts import restart
from trainop.engine.steps.stuck import StuckPods
from trainop.engine.steps.symptoms import notice_symptoms

__all__ = ["ignored", "plan", "reject"]

VALIDATION = "FailedValidation"


def plan(framework: Framework, seen: Snapshot) -> Plan:
    """Plans one reconcile. Pure, and never raises, whatever the job contains."""
    if ignored(seen.job, framework.managers) or seen.job.metadata.terminating:
        return Plan()
    builder = _begin(framework, seen)
    job, status = builder.job, builder.status
    if status.finished:
        return _tidy_up(builder)
    _note_creation(builder)
    begun = status.start_time is not None or builder.has_pods or builder.had_pods()
    if not begun and (problem := _find_fatal_errors(builder)):
        return _refuse(builder, problem)
    _check_terminating_pods(builder)
    return _suspend(builder) if job.run_policy.suspend else _proceed(builder)


def reject(framework: Framework, seen: Snapshot, message: str) -> Plan:
    """Plans the failure of a job because the API server refused one of its manifests with `message`."""
    builder = _begin(framework, seen)
    if builder.status.finished:
        return Plan()
    _note_creation(builder)
    return _refuse(builder, message)


def _begin(framework: Framework, seen: Snapshot) -> PlanBuilder:
    job = parse(framework, seen.job)
    children = claim(framework, job, seen)
    pods = (*children.pods.owned, *children.pods.orphans.values())
    return PlanBuilder(framework, settle_mode(framework, job, seen.options, pods), seen, children)


def _find_fatal_errors(builder: PlanBuilder) -> str:
    """The errors that keep the job from ever running, as one sentence; empty if there are none."""
    errors = find_errors(builder.job, lambda: builder.manifests)
    return sentence(errors, builder.job.more_errors) if errors else ""


def _describe_errors(builder: PlanBuilder) -> str:
    """The validation errors of the job as one sentence; empty if there are none."""
    return sentence(builder.job.errors, builder.job.more_errors) if builder.job.errors else ""


def _note_creation(builder: PlanBuilder) -> None:
    if builder.status.set(CREATED, builder.reason(CREATED), f"{builder.framework.kind} {builder.job.name} is created."):
        builder.count("created")


# Finished -------------------------------------------------------------------------------------------------------------


def _tidy_up(builder: PlanBuilder) -> Plan:
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
        reconcile_companions(builder, active=False)
        disband_gang(builder)
    return builder.plan()


def _finish(builder: PlanBuilder, *, abrupt: bool = False) -> Plan:
    """Completes a plan that has set a terminal condition. The status is written before the clean-up. `abrupt`: see
    `_clean_up`."""
    builder.status.complete()
    builder.status.clear_counters(builder.framework.support_roles)
    if builder.status.is_true(SUCCEEDED):
        builder.status.retire_active(into="succeeded")
    left = seconds_to_live(builder.job, builder.status, builder.seen.now)
    builder.requeue_after(left)
    _clean_up(builder, abrupt=abrupt)
    reconcile_companions(builder, active=False)
    disband_gang(builder)
    return builder.plan(status_first=True)


def _clean_up(builder: PlanBuilder, *, abrupt: bool) -> None:
    """Deletes what `cleanPodPolicy` does not keep. With `abrupt`, a limit or a refusal ended the job while pods were
    running; these are deleted under every policy."""
    policy = builder.job.run_policy.clean_pod_policy
    if policy != "All" and abrupt:
        policy = "Running"
    children = builder.children
    surplus = find_surplus(builder.job, (*children.pods.owned, *children.services.owned))
    builder.actions += sweep(children, policy, surplus)


def _ended_abruptly(builder: PlanBuilder) -> bool:
    """Whether an earlier reconcile failed the job because of a limit or a refusal."""
    failed = builder.status.find(FAILED) or {}
    if failed.get("status") != "True":
        return False
    stopped = RestartHistory(builder.job.metadata.uid, builder.job.metadata.annotations).stopped
    return bool(stopped) or failed.get("reason") == builder.reason(VALIDATION)


def _succeed(builder: PlanBuilder, progress: Progress) -> Plan:
    if progress.running:
        _set_running(builder)
    text = _fill_text(builder, builder.framework.texts(builder.job).succeeded)
    builder.status.set(SUCCEEDED, builder.reason(SUCCEEDED), text)
    builder.event(builder.reason(SUCCEEDED), text)
    builder.count("successful")
    return _finish(builder)


def _fail(
    builder: PlanBuilder, text: str, *, reason: str = FAILED, event_type: str = "Normal", abrupt: bool = False
) -> Plan:
    builder.status.set(FAILED, builder.reason(reason), text)
    builder.event(builder.reason(reason), text, event_type)
    builder.count("failed")
    return _finish(builder, abrupt=abrupt)


def _fail_at_limit(builder: PlanBuilder, limit: Limit, history: RestartHistory) -> Plan:
    """Fails the job and deletes its pods. The annotation makes later reconciles continue with the deletion."""
    history.stopped = limit.value
    builder.annotations[RESTARTS] = history.text(builder.children.pods.uids())
    builder.status.retire_active()
    return _fail(builder, limit.message.format(builder.job.name), abrupt=True)


def _fail_because(builder: PlanBuilder, fatal_failure: FatalFailure, progress: Progress) -> Plan:
    type_ = fatal_failure.role.type
    if fatal_failure.evicted and builder.framework.reports_evictions:
        text = f"{fatal_failure.evicted}/{fatal_failure.role.replicas} {type_.lower()}s are evicted"
        return _fail(builder, text, reason="Evicted", event_type="Warning")
    if fatal_failure.exit_code:
        text = f'job "{builder.job.name}" is failing because "{type_}" replica(s) failed.'
        return _fail(builder, text, event_type="Warning")
    if progress.running:
        _set_running(builder)
    return _fail(
        builder, _fill_text(builder, builder.framework.texts(builder.job).failed, count=fatal_failure.count, role=type_)
    )


def _refuse(builder: PlanBuilder, problem: str) -> Plan:
    """Fails a job that can never run, such as an invalid one."""
    builder.status.retire_active()
    return _fail(builder, _validation_text(builder, problem), reason=VALIDATION, event_type="Warning", abrupt=True)


def _validation_text(builder: PlanBuilder, problem: str) -> str:
    return f"{builder.framework.kind} failed validation because {problem}"


def _fill_text(builder: PlanBuilder, text: str, **facts: object) -> str:
    job = builder.job
    return text.format(kind=builder.framework.kind, name=job.name, namespace=job.namespace, **facts)


# Suspension -----------------------------------------------------------------------------------------------------------


def _suspend(builder: PlanBuilder) -> Plan:
    """Deletes all pods and services, whatever the clean-up policy; startTime is kept.

    The status is written first: if the job were resumed in between, its terminating pods would count as failures.
    """
    status, reason = builder.status, builder.reason(SUSPENDED)
    builder.actions += sweep(builder.children, "All")
    reconcile_companions(builder, active=False)
    disband_gang(builder)
    status.retire_active()
    text = f"{builder.framework.kind} {builder.job.name} is suspended."
    if status.is_true(RUNNING):
        status.set(RUNNING, reason, text, status="False")
    changed = status.set(SUSPENDED, reason, text)
    if changed:
        builder.event(reason, text)
    return builder.plan(status_first=changed)


def _wait_for_old_pods(builder: PlanBuilder) -> Plan:
    """A resumed job stays suspended until its old pods are gone, so that their end does not count as a failure."""
    builder.actions += sweep(builder.children, "All")
    return builder.plan()


def _resume(builder: PlanBuilder) -> None:
    reason, text = builder.reason("Resumed"), f"{builder.framework.kind} {builder.job.name} is resumed."
    builder.status.set(SUSPENDED, reason, text, status="False")
    builder.event(reason, text)
    builder.status.forget_start()
    if RESTARTS in builder.job.metadata.annotations:
        builder.annotations[RESTARTS] = None


def _check_terminating_pods(builder: PlanBuilder) -> None:
    stuck = StuckPods(builder.seen.wall or builder.seen.now, builder.seen.options)
    for pod in builder.children.pods.owned:
        if pod.metadata.deletion_timestamp is not None:
            stuck.check(pod, owned=True)
    for pod in builder.children.pods.being_removed.values():
        stuck.check(pod, owned=False)
    builder.actions += stuck.actions
    builder.notices += stuck.notices
    builder.requeue_after(stuck.requeue_after)


# Running --------------------------------------------------------------------------------------------------------------


def _proceed(builder: PlanBuilder) -> Plan:
    """Continues a job that is neither finished nor suspended. The status of a resumed job is written first: while it
    says Suspended, pods count as those from before the suspension."""
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


def _advance(builder: PlanBuilder) -> Plan:
    """Decides by the assessment: success, limit, failure, or restarts and scaling."""
    framework, job, status = builder.framework, builder.job, builder.status
    gang = GangStep(builder)
    if status.start_time is None and (gang.formed or builder.has_pods):  # the deadline does not run in a queue
        status.start()
    resumed = RESTARTS in builder.annotations
    found = assess_job(framework, job, builder.children, builder.seen, status, resumed=resumed)
    status.record(framework, job, found.tallies)
    _notice(builder, found.arrangement)
    if found.progress.succeeded:
        return _succeed(builder, found.progress)
    _count_failed_pods(builder, found)
    _count_disruptions(builder, found)
    if found.limit is not None:
        return _fail_at_limit(builder, found.limit, found.history)
    if found.findings.fatal_failures:
        return _fail_because(builder, found.findings.fatal_failures[0], found.progress)
    if job.readable:
        gang.form(complete=all(slots.full for slots in found.role_slots))
        gated = not reconcile_companions(builder, active=True) or not gang.open
        restart(builder, found)
        remove_surplus(builder, found)
        create_missing(builder, found, gated=gated)
    if found.progress.running and not found.findings.restarts and not _restart_pending(builder, found):
        _set_running(builder)
    _write_history(builder, found.history)
    builder.requeue_after(found.deadline_in)
    return builder.plan()


def _write_history(builder: PlanBuilder, history: RestartHistory) -> None:
    """Writes the history of a job that continues. A limit that an earlier reconcile recorded without being able to
    write the condition is removed."""
    if history.changed or history.stopped:
        history.stopped = ""
        builder.annotations[RESTARTS] = history.text(builder.children.pods.uids())


def _count_failed_pods(builder: PlanBuilder, found: Assessment) -> None:
    """Counts each failed pod once: restarted pods are in the history afterwards, and a fatal failure ends the job."""
    restarts = (pod for _, pod, _ in found.findings.restarts if pod.status.phase == "Failed")
    count = sum(not found.history.is_counted(pod.metadata.uid) for pod in restarts)
    count += sum(fatal_failure.count for fatal_failure in found.findings.fatal_failures)
    if count:
        builder.count("failed_pods", count)


def _count_disruptions(builder: PlanBuilder, found: Assessment) -> None:
    """Counts disruptions once each, as `_count_failed_pods`; a restart of a group counts once."""
    fatal = sum(fatal_failure.disruptions for fatal_failure in found.findings.fatal_failures)
    if count := found.new_restarts.disruptions + fatal:
        builder.count("disrupted", count)


def _restart_pending(builder: PlanBuilder, found: Assessment) -> bool:
    """Whether a restarted replica has not been replaced yet."""
    return builder.status.is_true(RESTARTING) and any(not slots.full for slots in found.role_slots)


def _set_running(builder: PlanBuilder) -> None:
    text = _fill_text(builder, builder.framework.texts(builder.job).running)
    builder.status.set(RUNNING, builder.reason(RUNNING), text)


def _notice(builder: PlanBuilder, arrangement: Arrangement) -> None:
    builder.notices += notice_symptoms(builder.job, builder.children.pods.owned)
    for pod in builder.children.pods.owned:
        if isinstance(pod, UnreadablePod):
            builder.warn_unreadable("Pod", pod.metadata.name, pod.fault)
    if invalid := arrangement.pods_without_slot:
        named = join_names(pod.metadata for pod in invalid)
        text = "Not counted and not replaced, as their labels replica-type and replica-index name no replica"
        builder.warn("labels", "InvalidReplicaLabels", f"{text}: {named}")
    for claimed, kind in ((builder.children.pods, "Pod"), (builder.children.services, "Service")):
        if claimed.unexpected:
            text = f"Not made for {builder.framework.kind} {builder.job.name}, so ignored although they have its labels"
            builder.warn(f"strangers/{kind}", f"Unexpected{kind}s", f"{text}: {join_names(claimed.unexpected)}")
