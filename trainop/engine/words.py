"""The words for failures: the same in conditions, events, `trainop run` and every other place that explains a job."""

from __future__ import annotations

from trainop.engine.root_cause import Failure
from trainop.runtime.lowlevel import LONGEST_TEXT, cut, timestamp

_ROOM_FOR_LOG = 384
"""Bytes of the last lines of a log in a sentence."""

UNKNOWN_ENDS = "It is not known how the restarted containers ended"

_BY_REASON = {
    "OOMKilled": "was killed because it needed more memory than its limit",
    "Evicted": "was evicted from its node",
    "Preempting": "was preempted by a pod of higher priority",
    "PreemptionByScheduler": "was preempted by a pod of higher priority",
    "DeletionByTaintManager": "was evicted because its node has a taint that it does not tolerate",
    "EvictionByEvictionAPI": "was evicted by another client",
    "DeletionByPodGC": "was lost with its node",
    "NodeLost": "was lost with its node",
    "TerminationByKubelet": "was ended by its node",
    "Terminated": "was ended by its node",
    "NodeShutdown": "was ended because its node shut down",
    "DeadlineExceeded": "was active longer than the deadline of its pod",
    "Deleted": "was deleted by another client",
}
"""Reason of a pod or of its condition DisruptionTarget -> what happened. The container's exit code says less."""

_CANNOT_START = frozenset({"StartError", "ContainerCannotRun", "ContainerCreateError", "CreateContainerError"})
"""Reasons of containers whose command could not be started."""

_CODES = {126: "the command cannot be executed", 127: "the command was not found"}
"""Exit codes of a shell that could not start a command."""


def append_cause(text: str, cause: Failure | None) -> str:
    """`text`, which is upstream's and stays as it is, and behind it the words for the root cause. Bounded."""
    if cause is None:
        return text
    join = " " if text.endswith(".") else ". "
    return cut(f"{text}{join}{describe_cause(cause)}", LONGEST_TEXT)


def describe_cause(cause: Failure) -> str:
    """The root cause in one or two sentences."""
    if not cause.role:
        return f"{cause.message}." if cause.message == UNKNOWN_ENDS else f"No replica had failed: {cause.message}."
    head = f"First failure: {describe(cause)}"
    after = f"; {count_replicas(cause.others)} failed after it" if cause.others else ""
    return f"{head}{after}.{_last_output(cause)}"


def describe(failure: Failure) -> str:
    """Which replica failed, how and when, without a full stop."""
    at = f" at {timestamp(failure.at)}" if failure.at is not None else ""
    before = failure.attempt - 1
    attempt = f", after {before:,} restart{'s' if before > 1 else ''}" if before > 0 else ""
    return f"{name_replica(failure)} {describe_end(failure)}{at}{attempt}"


def name_replica(failure: Failure) -> str:
    """`Worker 1 (rank 2, pod j-worker-1 on node a)`."""
    index = "" if failure.index is None else f" {failure.index}"
    rank = "" if failure.rank is None else f"rank {failure.rank}"
    pod = f"pod {failure.pod}" if failure.pod else "its pod is gone"
    node = f" on node {failure.node}" if failure.node else ""
    facts = ", ".join(filter(None, (rank, f"{pod}{node}")))
    return f"{failure.role}{index} ({facts})"


def describe_end(failure: Failure) -> str:
    """What happened to the replica, with reason and exit code: `exited with code 1`."""
    code, said = failure.exit_code, _BY_REASON.get(failure.reason)
    if said is not None:
        details = ", ".join(filter(None, (failure.reason, "" if code is None else f"exit code {code}")))
        return f"{said} ({details}){_because(failure)}"
    if failure.reason in _CANNOT_START:
        why = f": {failure.log[-1]}" if failure.log else ""
        return f"could not start ({failure.reason}){why}"
    if failure.signal:
        return f"was ended by {failure.signal} (exit code {code})"
    if code is not None:
        hint = f" ({_CODES[code]})" if code in _CODES else ""
        return f"exited with code {code}{hint}{_because(failure)}"
    reason = f" ({failure.reason})" if failure.reason else ""
    return f"failed{reason}{_because(failure)}"


def count_running(active: int, wanted: int, what: str = "replicas") -> str:
    return f"{active:,} of {wanted:,} {what} were running"


def count_replicas(number: int) -> str:
    return "1 other replica" if number == 1 else f"{number:,} other replicas"


def _because(failure: Failure) -> str:
    return f": {failure.message.rstrip('.')}" if failure.message else ""


def _last_output(failure: Failure) -> str:
    """The last lines that fit."""
    if not failure.log or failure.reason in _CANNOT_START:
        return ""
    shown: list[str] = []
    size = 0
    for line in reversed(failure.log):
        stripped = line.strip()
        size += len(stripped.encode("utf-8", "replace")) + 3
        if shown and size > _ROOM_FOR_LOG:
            break
        shown.append(stripped)
    return f" Last output: {' | '.join(reversed(shown))}"
