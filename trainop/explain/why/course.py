"""Rules about the course of a job: how it ended, what it restarts for, and how it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from trainop.engine.bad_nodes import BadNodes, read_rule
from trainop.engine.extensions import AVOID_BAD_NODES
from trainop.engine.fields import as_object
from trainop.engine.restart_history import RestartHistory
from trainop.engine.root_cause import LAST_FAILURE, Failure, describe, describe_cause, read_failure
from trainop.engine.startup import EXCEEDED, STARTING, read_startup_rule
from trainop.engine.status import STARTED, TEMPLATE_VALID
from trainop.engine.template_condition import UNKNOWN_FIELDS
from trainop.explain.why.account import describe_account, find_account
from trainop.explain.why.cause import Cause, Weight
from trainop.explain.why.evidence import Evidence, as_text, as_texts
from trainop.explain.why.refusals import REFUSALS
from trainop.explain.why.reported import read_reported
from trainop.explain.why.words import name_pods, span
from trainop.runtime.lowlevel import read_time, timestamp

ACCOUNTED = 60
"""Seconds of the life of a job from which on it matters what they were spent on."""
AVOIDED_NODES = 5
"""Avoided nodes that are named."""
SILENT_AFTER = 300.0
"""Seconds without output after which a running job may hang."""

_DNS = re.compile(
    "name or service not known|temporary failure in name resolution|could not resolve|nodename nor servname"
    "|no such host|unable to get host address",
    re.IGNORECASE,
)
_CODES = {
    126: "the command cannot be executed: check its permissions",
    127: "the command does not exist in the image: check command and image",
    137: "it was killed; without OOMKilled that is a node under memory pressure, or a forced deletion",
    139: "it crashed in native code (SIGSEGV): check library versions, drivers and shared memory",
}


def find(seen: Evidence) -> Iterator[Cause]:
    """The end, or how the job runs."""
    failure = read_failure(seen.status.get(LAST_FAILURE))
    if (account := find_account(seen)) and account.total >= ACCOUNTED:
        until = "" if seen.finished else f" until {account.until:%Y-%m-%d %H:%M:%S} UTC"
        yield Cause("Account", f"its time{until}: {describe_account(account)}")
    if seen.metadata.get("deletionTimestamp"):
        yield _deleted(seen)
    if seen.finished == "Succeeded":
        yield _succeeded(seen)
        return
    if seen.finished == "Failed":
        yield _failed(seen, failure)
    else:
        yield from _restarting(seen, failure)
        yield from _running(seen)
        yield from _deadline(seen)
        yield from _startup(seen)
        yield from _avoided(seen)
        yield from _warned(seen)
    if failure is not None and any(_DNS.search(line) for line in failure.log):
        yield Cause(
            "NameResolution",
            "a replica could not resolve the name of another one",
            "the other replica may have started late or ended; check the cluster's DNS, and the Services of the job",
            failure.log[-2:],
            Weight.FAILURE,
        )


# The end --------------------------------------------------------------------------------------------------------------


def _deleted(seen: Evidence) -> Cause:
    held = ", ".join(as_texts(seen.metadata.get("finalizers")))
    return Cause(
        "Deleting",
        "the job is being deleted" + (f", and waits for the finalizer {held}" if held else ""),
        f"its controller has to remove {held}" if held else "",
        weight=Weight.END + 1,
    )


def _succeeded(seen: Evidence) -> Cause:
    began, ended = (read_time(seen.status.get(name)) for name in ("startTime", "completionTime"))
    took = f" after {span((ended - began).total_seconds())}" if began and ended and ended >= began else ""
    condition = as_object(seen.condition("Succeeded"))
    said = as_text(condition.get("message"))
    return Cause("Succeeded", f"the job succeeded{took}", "", (said,) if said else (), Weight.END)


def _failed(seen: Evidence, failure: Failure | None) -> Cause:
    condition = as_object(seen.condition("Failed"))
    reason, message = as_text(condition.get("reason")), as_text(condition.get("message"), 1024)
    limit = _limit(message)
    if reason.endswith("FailedValidation"):
        return _invalid(message)
    if failure is None:
        return Cause(
            "Failed", f"the job failed{limit}", "trainop logs shows what its replicas printed", (message,), Weight.END
        )
    text = describe_cause(failure)
    code = "OutOfMemory" if failure.reason == "OOMKilled" else "Failed"
    advice = _advise(failure) if failure.role else "raise the limit, or see with trainop logs what the replicas did"
    if _is_permanent(seen, failure):
        advice = f"restartPolicy ExitCode retries exit codes from 128 on only, not {failure.exit_code}; {advice}"
    return Cause(code, f"the job failed{limit}. {text}".rstrip("."), advice, tuple(failure.log[-10:]), Weight.END)


def _is_permanent(seen: Evidence, failure: Failure) -> bool:
    """Whether the replica was not restarted because of its exit code."""
    for name, roles in seen.spec.items():
        if name.endswith("ReplicaSpecs") and as_object(roles).get(failure.role):
            policy = as_object(as_object(roles)[failure.role]).get("restartPolicy")
            return policy == "ExitCode" and 0 < (failure.exit_code or 0) < 128
    return False


def _invalid(message: str) -> Cause:
    """A job that never had a pod: its own fields are wrong, or the API server refused its first pod."""
    for refusal in REFUSALS:
        if refusal.pattern.search(message):
            return Cause(refusal.code, f"the job failed: {refusal.text}", refusal.next, (message,), Weight.END)
    text, advice = "the job is invalid, so that no pod was created", "correct the field and create the job again"
    return Cause("Invalid", text, advice, (message,), Weight.END)


def _limit(message: str) -> str:
    for words, text in (
        ("backoff limit", " because it has used up its restarts (runPolicy.backoffLimit)"),
        ("infra restart limit", " because it was disrupted too often (annotation infra-restart-limit)"),
        ("before its startup deadline", " because not all replicas started in time (annotation startup-deadline)"),
        ("active longer than specified deadline", " because it ran longer than runPolicy.activeDeadlineSeconds"),
    ):
        if words in message:
            return text
    return ""


def _advise(failure: Failure) -> str:
    if failure.reason == "OOMKilled":
        return "raise resources.limits.memory, or use less, such as a smaller batch"
    if failure.reason in {"Evicted", "NodeLost", "Preempting", "PreemptionByScheduler", "DeletionByTaintManager"}:
        return "restartPolicy OnFailure or ExitCode lets the job go on after a disruption"
    if failure.exit_code in _CODES:
        return _CODES[failure.exit_code]
    return "trainop logs shows the whole output of the replica that failed first"


# Restarts -------------------------------------------------------------------------------------------------------------


def _restarting(seen: Evidence, failure: Failure | None) -> Iterator[Cause]:
    annotations = as_object(seen.metadata.get("annotations"))
    texts = {name: value for name, value in annotations.items() if isinstance(value, str)}
    history = RestartHistory(str(seen.metadata.get("uid")), texts)
    restarting = seen.condition("Restarting") is not None
    if not (history.failures or history.disruptions or restarting):
        return
    limit = seen.policy.get("backoffLimit")
    budget = f" of {limit} that runPolicy.backoffLimit allows" if isinstance(limit, int) else ""
    parts = []
    if history.failures:
        parts.append(f"{history.failures} after failures{budget}")
    if history.disruptions:
        parts.append(f"{history.disruptions} after disruptions, which do not count towards backoffLimit")
    wait = max((history.wait(role, seen.now) for role in _groups(seen)), default=0.0)
    when = f"; the next pods are created in {span(wait)}, because restarts follow each other" if wait > 1 else ""
    said = f". Last: {describe(failure)}" if failure is not None and failure.role else ""
    count = ", ".join(parts) or "being restarted"
    yield Cause(
        "BackOff" if wait > 1 else "Restarting" if restarting else "Restarted",
        f"restarts: {count}{when}{said}",
        _advise(failure) if failure is not None else "",
        tuple(failure.log[-5:]) if failure is not None else (),
        Weight.FAILURE if restarting or wait > 1 else Weight.COURSE - 1,
    )


def _groups(seen: Evidence) -> Iterator[str]:
    """The restart groups of the job: its roles, and all of them together."""
    yield "*"
    for name, value in seen.spec.items():
        if name.endswith("ReplicaSpecs"):
            yield from as_object(value)


# Running --------------------------------------------------------------------------------------------------------------


def _running(seen: Evidence) -> Iterator[Cause]:
    stalled = seen.condition("Stalled")
    if stalled is not None:
        yield Cause(
            "Stalled",
            "the job reports no progress any more",
            "trainop stacks shows where its replicas stand",
            (as_text(stalled.get("message")),),
            Weight.FAILURE + 1,
        )
    running = [each for each in seen.pods if each.phase == "Running" and not each.deadline]
    if not running:
        return
    total = len(seen.pods)
    silent = {name: (seen.now - at).total_seconds() for name, at in seen.last_output.items()}
    if silent and min(silent.values()) >= SILENT_AFTER:
        names = ", ".join(sorted(silent)[:3])
        yield Cause(
            "Silent",
            f"{len(running)} of {total} pods run, but {names} printed nothing for {span(min(silent.values()))}",
            "trainop stacks shows where they stand",
            weight=Weight.COURSE + 1,
        )
    elif len(running) == total:
        done = _done(seen)
        yield Cause(
            "Running", f"all {total} pods run{done}" if total > 1 else f"its pod runs{done}", weight=Weight.COURSE
        )
    else:
        rest = [each for each in seen.pods if (each.phase != "Running" or each.deadline) and each.phase != "Succeeded"]
        done_ = sum(each.phase == "Succeeded" for each in seen.pods)
        more = f", {done_} have finished" if done_ else ""
        waits = f"; {name_pods(rest, total)} not" if rest else ""
        yield Cause(
            "PartlyRunning" if rest else "Running",
            f"{len(running)} of {total} pods run{more}{waits}",
            weight=Weight.COURSE,
        )


def _done(seen: Evidence) -> str:
    """What the job has reported."""
    reported = read_reported(seen.status)
    if reported is None or reported.percent is None:
        return ""
    left = f", {span(reported.left)} left" if reported.left is not None and reported.percent < 100 else ""
    return f", {reported.percent} % done{left}"


def _deadline(seen: Evidence) -> Iterator[Cause]:
    seconds, began = seen.policy.get("activeDeadlineSeconds"), read_time(seen.status.get("startTime"))
    if isinstance(seconds, int) and began is not None:
        left = (began + timedelta(seconds=min(seconds, 10**9)) - seen.now).total_seconds()
        yield Cause("Deadline", f"it is stopped in {span(left)}, when runPolicy.activeDeadlineSeconds have passed")


def _startup(seen: Evidence) -> Iterator[Cause]:
    """A job of which not all replicas have started; `queue` explains one that is suspended for it."""
    condition = next((each for each in seen.conditions() if each.get("type") == STARTED), {})
    if condition.get("reason") == EXCEEDED and not seen.suspended:
        yield Cause(
            "StartupDeadline",
            "not all replicas started before the startup deadline",
            "mend what the message names; Kueue stops such jobs itself with waitForPodsReady",
            (as_text(condition.get("message")),),
            Weight.FAILURE,
        )
    annotations, since = as_object(seen.metadata.get("annotations")), read_time(condition.get("lastTransitionTime"))
    rule = read_startup_rule({name: value for name, value in annotations.items() if isinstance(value, str)})
    if rule is not None and condition.get("reason") == STARTING and since is not None:
        left = rule.deadline - (seen.now - since).total_seconds()
        what = "fails" if rule.fails else "is suspended"
        yield Cause("Deadline", f"it {what} in {span(left)} unless all replicas have started (startup-deadline)")


def _avoided(seen: Evidence) -> Iterator[Cause]:
    """The nodes that the job avoids, which may be why pods find no node."""
    annotations = as_object(seen.metadata.get("annotations"))
    texts = {name: value for name, value in annotations.items() if isinstance(value, str)}
    rule = read_rule(texts)
    nodes = BadNodes(str(seen.metadata.get("uid")), texts).avoided(rule, seen.now) if rule is not None else {}
    if rule is None or not nodes:
        return
    waits = rule.required and any(each.phase == "Pending" and not each.node for each in seen.pods)
    names = ", ".join(list(nodes)[:AVOIDED_NODES]) + (" and others" if len(nodes) > AVOIDED_NODES else "")
    how = "may not run" if rule.required else "run, if possible, not"
    yield Cause(
        "AvoidedNodes",
        f"{'pods wait for a node, and ' if waits else ''}new pods {how} on {names}, where pods of the job have ended",
        f"remove the annotation {AVOID_BAD_NODES} to use {'it' if len(nodes) == 1 else 'them'} again" if waits else "",
        tuple(
            f"{name}: {each.ends} ended, the last because of {each.why}; avoided until {timestamp(each.until(rule))}"
            for name, each in list(nodes.items())[:AVOIDED_NODES]
        ),
        Weight.PLACEMENT + 1 if waits else Weight.HINT,
    )


def _warned(seen: Evidence) -> Iterator[Cause]:
    """Conditions of the operator that name a problem, and the latest Warning about the job itself."""
    for condition in seen.conditions():
        if (condition.get("type"), condition.get("status")) == (TEMPLATE_VALID, "False"):
            yield Cause(
                UNKNOWN_FIELDS,
                "the pod template has fields that Kubernetes does not know, and pods run without them",
                "correct their names: trainop check shows their lines",
                (as_text(condition.get("message")),),
                Weight.COURSE + 2,
            )
    warnings = [each for each in reversed(seen.events) if each.type == "Warning" and each.kind == seen.kind]
    known = ("FailedCreate", "PermissionDenied", UNKNOWN_FIELDS)
    latest = next((each for each in warnings if not each.reason.startswith(known)), None)
    if latest is not None:
        yield Cause("Warning", f"the operator warns: {latest.reason}", "", (latest.message,))
