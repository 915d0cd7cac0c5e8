"""From one snapshot to one plan: the flow that all kinds share (job-engine, `ReconcileJobs` of training-operator).

Read from the top: a job that is finished is tidied up; one that cannot run is refused; a suspended one gives its pods
back; any other advances: it succeeds, or meets a limit, or fails, or else its replicas are restarted, removed and
created until they are what the spec says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainop.engine.actions import DeleteJob, Plan
from trainop.engine.claim import claim, name_some
from trainop.engine.cleanup import sweep
from trainop.engine.companions import tend
from trainop.engine.draft import Draft
from trainop.engine.failures import Fatality, Findings, examine
from trainop.engine.fields import sentence
from trainop.engine.framework import Framework, Progress, Tally
from trainop.engine.ledger import RESTARTS, Ledger
from trainop.engine.limits import DEADLINE, ended_abruptly, exceeded, seconds_to_deadline, seconds_to_live
from trainop.engine.parse import ignored, parse
from trainop.engine.replicas import fill, remove_surplus
from trainop.engine.restarts import count_fresh, restart, restartable
from trainop.engine.seen import Snapshot, UnreadablePod
from trainop.engine.slots import Arrangement, Line, arrange, find_surplus
from trainop.engine.status import CREATED, FAILED, RESTARTING, RUNNING, SUCCEEDED, SUSPENDED
from trainop.engine.symptoms import Stuck, notice_symptoms

__all__ = ["ignored", "plan", "reject"]

VALIDATION = "FailedValidation"


def plan(framework: Framework, seen: Snapshot) -> Plan:
    """What to do about `seen`. Pure, and never raises for what a job contains."""
    if ignored(seen.job) or seen.job.metadata.terminating:
        return Plan()
    draft = _draft(framework, seen)
    job, status = draft.job, draft.status
    if status.finished:
        return _tidy_up(draft)
    _note_creation(draft)
    begun = status.start_time is not None or draft.has_pods
    if not begun and (problem := _why_never(draft)):
        return _refuse(draft, problem)
    _look_at_dying(draft)
    return _suspend(draft) if job.run_policy.suspend else _proceed(draft)


def reject(framework: Framework, seen: Snapshot, message: str) -> Plan:
    """Fail the job because the API server refused a manifest made from its template, with the server's `message`."""
    draft = _draft(framework, seen)
    if draft.status.finished:
        return Plan()
    _note_creation(draft)
    return _refuse(draft, message)


def _draft(framework: Framework, seen: Snapshot) -> Draft:
    job = parse(framework, seen.job)
    return Draft(framework, job, seen, claim(framework, job, seen))


def _why_never(draft: Draft) -> str:
    """What keeps the job from ever running; empty if nothing does."""
    return _why_wrong(draft) or draft.manifests.overlong


def _why_wrong(draft: Draft) -> str:
    """What validation says of the job; empty if nothing."""
    return sentence(draft.job.errors, draft.job.more_errors) if draft.job.errors else ""


def _note_creation(draft: Draft) -> None:
    if draft.status.set(CREATED, draft.reason(CREATED), f"{draft.framework.kind} {draft.job.name} is created."):
        draft.count("created")


# The end --------------------------------------------------------------------------------------------------------------


def _tidy_up(draft: Draft) -> Plan:
    """Of a finished job only the clean-up and its time to live are left."""
    job, status = draft.job, draft.status
    if status.is_true(SUCCEEDED):
        status.retire_active(into="succeeded")
    left = None if job.run_policy.suspend else seconds_to_live(job, status, draft.seen.now)
    if left is not None and left <= 0:
        draft.actions = [DeleteJob()]
    else:
        draft.look_again(left)
        _give_back(draft)
        tend(draft, active=False)
    return draft.plan()


def _finish(draft: Draft) -> Plan:
    """The terminal condition is set: write it before anything is cleaned up."""
    draft.status.complete()
    if draft.status.is_true(SUCCEEDED):
        draft.status.retire_active(into="succeeded")
    left = seconds_to_live(draft.job, draft.status, draft.seen.now)
    draft.look_again(left)
    _give_back(draft)
    tend(draft, active=False)
    return draft.plan(status_first=True)


def _give_back(draft: Draft) -> None:
    policy = draft.job.run_policy.clean_pod_policy
    if policy != "All" and ended_abruptly(draft.job, draft.status, draft.reason(VALIDATION)):
        policy = "Running"
    children = draft.children
    surplus = find_surplus(draft.job, (*children.pods.ours, *children.services.ours))
    draft.actions += sweep(children, policy, surplus)


def _succeed(draft: Draft, progress: Progress) -> Plan:
    if progress.running:
        _set_running(draft)
    text = _fill_text(draft, draft.framework.texts(draft.job).succeeded)
    draft.status.set(SUCCEEDED, draft.reason(SUCCEEDED), text)
    draft.event(draft.reason(SUCCEEDED), text)
    draft.count("successful")
    return _finish(draft)


def _fail(draft: Draft, text: str, *, reason: str = FAILED, event_type: str = "Normal") -> Plan:
    draft.status.set(FAILED, draft.reason(reason), text)
    draft.event(draft.reason(reason), text, event_type)
    draft.count("failed")
    return _finish(draft)


def _fail_at_limit(draft: Draft, text: str) -> Plan:
    """All pods go, so that none is active any more."""
    draft.status.retire_active()
    return _fail(draft, text.format(draft.job.name))


def _fail_because(draft: Draft, fatality: Fatality, progress: Progress) -> Plan:
    type_ = fatality.role.type
    if fatality.exit_code:
        text = f'job "{draft.job.name}" is failing because "{type_}" replica(s) failed.'
        return _fail(draft, text, event_type="Warning")
    if progress.running:
        _set_running(draft)
    return _fail(draft, _fill_text(draft, draft.framework.texts(draft.job).failed, count=fatality.count, role=type_))


def _refuse(draft: Draft, problem: str) -> Plan:
    """The job can never run as it is."""
    draft.status.retire_active()
    return _fail(draft, _validation_text(draft, problem), reason=VALIDATION, event_type="Warning")


def _validation_text(draft: Draft, problem: str) -> str:
    return f"{draft.framework.kind} failed validation because {problem}"


def _fill_text(draft: Draft, text: str, **facts: object) -> str:
    job = draft.job
    return text.format(kind=draft.framework.kind, name=job.name, namespace=job.namespace, **facts)


# Pauses ---------------------------------------------------------------------------------------------------------------


def _suspend(draft: Draft) -> Plan:
    """Give back all pods and services, whatever the clean-up policy; startTime stays.

    The status goes first: were the job resumed between the two, its dying pods would pass for failures.
    """
    status, reason = draft.status, draft.reason(SUSPENDED)
    draft.actions += sweep(draft.children, "All")
    tend(draft, active=False)
    status.retire_active()
    text = f"{draft.framework.kind} {draft.job.name} is suspended."
    if status.is_true(RUNNING):
        status.set(RUNNING, reason, text, status="False")
    fresh = status.set(SUSPENDED, reason, text)
    if fresh:
        draft.event(reason, text)
    return draft.plan(status_first=fresh)


def _await_departure(draft: Draft) -> Plan:
    """Resumed while pods from before are still there: the job stays suspended until they have gone, so that their end
    is not taken for a failure of the new ones."""
    draft.actions += sweep(draft.children, "All")
    return draft.plan()


def _resume(draft: Draft) -> None:
    reason, text = draft.reason("Resumed"), f"{draft.framework.kind} {draft.job.name} is resumed."
    draft.status.set(SUSPENDED, reason, text, status="False")
    draft.event(reason, text)
    draft.status.start()
    if RESTARTS in draft.job.metadata.annotations:
        draft.annotations[RESTARTS] = None


def _look_at_dying(draft: Draft) -> None:
    stuck = Stuck(draft.seen.wall or draft.seen.now, draft.seen.options)
    for pod in draft.children.pods.ours:
        if pod.metadata.deletion_timestamp is not None:
            stuck.look_at(pod, ours=True)
    for pod in draft.children.pods.leaving.values():
        stuck.look_at(pod, ours=False)
    draft.actions += stuck.actions
    draft.notices += stuck.notices
    draft.look_again(stuck.again_in)


# The way there --------------------------------------------------------------------------------------------------------


def _proceed(draft: Draft) -> Plan:
    """The status of a resumed job goes first: as long as it says Suspended, pods are taken for those from before."""
    resumed = draft.status.is_true(SUSPENDED)
    if resumed:
        if draft.children.pods.ours or draft.children.pods.adoptees:
            return _await_departure(draft)
        _resume(draft)
    if draft.job.errors:
        identity = f"validation/{draft.job.metadata.generation}"
        draft.warn(identity, draft.reason(VALIDATION), _validation_text(draft, _why_wrong(draft)))
    following = _advance(draft)
    return replace(following, status_first=True) if resumed else following


def _advance(draft: Draft) -> Plan:
    """One step of a job that is to run."""
    framework, job, status, pods = draft.framework, draft.job, draft.status, draft.children.pods.ours
    if status.start_time is None:
        status.start()
    arrangement = arrange(job, pods)
    lines = arrangement.lines
    tallies = {line.role.type: line.tally(framework.container) for line in lines}
    status.record(framework, job, tallies)
    _notice(draft, arrangement)
    progress = _read_progress(draft, arrangement, tallies)
    if progress.succeeded:
        return _succeed(draft, progress)

    stored = {} if RESTARTS in draft.annotations else job.metadata.annotations
    ledger = Ledger(job.metadata.uid, stored)
    findings = examine(framework, job, lines, pods, ledger)
    findings.restarts = restartable(job, findings.restarts)
    _count_failed_pods(draft, findings, ledger)
    fresh = count_fresh(job, findings, ledger)
    limit = exceeded(job, lines, findings, ledger, fresh)
    if limit is not None:
        return _fail_at_limit(draft, limit)
    left = seconds_to_deadline(job, status, draft.seen.now)
    if left is not None and left <= 0:
        return _fail_at_limit(draft, DEADLINE)
    if findings.fatalities:
        return _fail_because(draft, findings.fatalities[0], progress)

    if job.readable:
        tend(draft, active=True)
        restart(draft, lines, findings, ledger, fresh)
        remove_surplus(draft, arrangement, ledger)
        fill(draft, lines, findings, ledger)
    if progress.running and not findings.restarts and not _restart_pending(draft, lines):
        _set_running(draft)
    if ledger.touched:
        draft.annotations[RESTARTS] = ledger.text(draft.children.pods.uids())
    draft.look_again(left)
    return draft.plan()


def _read_progress(draft: Draft, arrangement: Arrangement, tallies: Mapping[str, Tally]) -> Progress:
    """What the pods say of the job. Nothing while the pods of a role that an edit has taken away, or misspelt, might be
    those that decide."""
    if draft.job.errors and arrangement.strays:
        return Progress(running=False, succeeded=False)
    return draft.framework.progress(draft.job, tallies)


def _count_failed_pods(draft: Draft, findings: Findings, ledger: Ledger) -> None:
    """Once each: a pod to be restarted is settled thereafter, a fatality is the job's end."""
    restarts = (pod for _, pod, _ in findings.restarts if pod.status.phase == "Failed")
    count = sum(not ledger.settled(pod.metadata.uid) for pod in restarts)
    count += sum(fatality.count for fatality in findings.fatalities)
    if count:
        draft.count("failed_pods", count)


def _restart_pending(draft: Draft, lines: list[Line]) -> bool:
    """A restarted replica is not back yet."""
    return draft.status.is_true(RESTARTING) and any(not line.full for line in lines)


def _set_running(draft: Draft) -> None:
    text = _fill_text(draft, draft.framework.texts(draft.job).running)
    draft.status.set(RUNNING, draft.reason(RUNNING), text)


def _notice(draft: Draft, arrangement: Arrangement) -> None:
    draft.notices += notice_symptoms(draft.framework, draft.children.pods.ours)
    for pod in draft.children.pods.ours:
        if isinstance(pod, UnreadablePod):
            draft.tell_unreadable("Pod", pod.metadata.name, pod.fault)
    if unreadable := arrangement.unreadable:
        named = name_some(pod.metadata for pod in unreadable)
        text = "Not counted and not replaced, as their labels replica-type and replica-index name no replica"
        draft.warn("labels", "InvalidReplicaLabels", f"{text}: {named}")
    for claimed, kind in ((draft.children.pods, "Pod"), (draft.children.services, "Service")):
        if claimed.strangers:
            text = f"Not made for {draft.framework.kind} {draft.job.name}, so ignored although they have its labels"
            draft.warn(f"strangers/{kind}", f"Unexpected{kind}s", f"{text}: {name_some(claimed.strangers)}")
