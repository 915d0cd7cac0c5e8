"""`Failure`: how one replica failed, which of several failures is the root cause, and the words for it.

The first that failed is the cause. A replica that was running then and ended within the time-out of a collective
operation, or in the way of a program that has lost a peer, failed as a consequence. Ends that the operator itself
brought about are no failures at all; whoever collects the failures leaves them out (`ends`). The words are the same in
conditions, events, `trainop run` and every other place that explains a job.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from trainop.runtime import Json
from trainop.runtime.lowlevel import LATEST, LONGEST_TEXT, cut, printable, read_time, timestamp

LAST_FAILURE = "lastFailure"
"""The field of a job's status."""

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Default time-out of NCCL in PyTorch (`torch.distributed.constants.default_pg_nccl_timeout`): a replica that ends
within it after a peer failed is a consequence."""
SLOW_TIMEOUT = timedelta(minutes=31)
"""Default time-out of gloo in PyTorch and a minute: a replica that ends within it is a consequence if its last
words say so."""

PEER_CODES = frozenset({134, 139, 143})
"""Exit codes of SIGABRT, SIGSEGV and SIGTERM: the usual ends of a program whose peer is gone."""

_PEER_TEXT = re.compile(
    "connection (?:was )?(?:reset|closed) by peer|connection refused|broken ?pipe|socket closed|remote process exited"
    "|nccl[^\n]{0,200}time[ds]?[ -]?out|watchdog[^\n]{0,200}time[ds]?[ -]?out|ncclsystemerror|ncclremoteerror"
    "|gloo[^\n]{0,200}time[ds]?[ -]?out|timed out waiting \\d+ ?ms for (?:recv|send)|\\[gloo|gloo/transport"
    "|deadline_?exceeded|heartbeat timeout|coordination service[^\n]{0,200}(?:error|unavailable)"
    "|orted|prted|mpi_abort was invoked",
    re.IGNORECASE,
)
"""Last words of a program that has lost a peer: of sockets, NCCL, gloo, JAX and TensorFlow, and of Open MPI."""

MAX_LINES = 10
"""Lines of a log in a `Failure`."""
MAX_LINE, MAX_LOG = 256, 768
"""Bytes of one of them, and of all."""
MAX_MESSAGE = 256
MAX_NAME = 253
"""Bytes of the message of a Failure, and of a name."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a replica failed, or why a job without a failed replica did. All texts are bounded and printable."""

    role: str = ""
    """As in the spec, such as `Worker`; empty if no replica failed."""
    index: int | None = None
    """None for a role of one replica without an index."""
    rank: int | None = None
    """The rank that the kind gives the replica; None if it gives none."""
    pod: str = ""
    node: str = ""
    container: str = ""
    exit_code: int | None = None
    """None if no container of the pod ended."""
    reason: str = ""
    """Kubernetes' word, such as Error, OOMKilled, Evicted, or Deleted; or a limit of the job."""
    message: str = ""
    """What the kubelet, a controller or the API server says about it, in one line."""
    attempt: int = 1
    """Which run of the replica this was: 1 and the restarts before it."""
    at: datetime | None = None
    """When it ended, by the clock of the API server as far as it is known; None: unknown."""
    began: datetime | None = None
    """When that run began; None: unknown. Not part of the status."""
    log: tuple[str, ...] = ()
    """The last lines of the log, or of the container's termination message."""
    others: int = 0
    """The number of replicas that failed after it."""
    consequence: bool = False
    """It followed from an earlier failure. Never true of a `lastFailure`."""

    @property
    def signal(self) -> str:
        """The name of the signal that ended the program; empty if none did."""
        return signal_name(self.exit_code)

    @property
    def replica(self) -> tuple[str, int | None, str]:
        """What all attempts of one replica have in common. One without an index is known by the name of its pod."""
        return self.role, self.index, self.pod if self.index is None else ""

    def as_json(self) -> Json:
        """The value of `status.lastFailure`; fields without a value are left out."""
        fields: Json = {
            "role": self.role,
            "index": self.index,
            "rank": self.rank,
            "pod": self.pod,
            "node": self.node,
            "container": self.container,
            "exitCode": self.exit_code,
            "signal": self.signal,
            "reason": self.reason,
            "message": self.message,
            "attempt": self.attempt if self.role else None,
            "time": timestamp(self.at) if self.at is not None else None,
            "log": list(self.log),
            "failedAfter": self.others,
        }
        kept = {name: value for name, value in fields.items() if value or (value == 0 and name in _KEPT_ZEROS)}
        return {name: value for name, value in kept.items() if value is not None}


_KEPT_ZEROS = ("index", "rank", "exitCode")


def refusal(reason: str, message: str, at: datetime) -> Failure:
    """Why a job ended of which no replica failed."""
    return Failure(reason=reason, message=one_line(message, MAX_MESSAGE), at=at)


def read_failure(raw: object) -> Failure | None:
    """The value of `status.lastFailure`; None if there is none. Fields of a wrong type count as absent."""
    if not isinstance(raw, dict):
        return None
    log = raw.get("log")
    return Failure(
        role=_read_text(raw, "role", MAX_NAME),
        index=_read_number(raw, "index"),
        rank=_read_number(raw, "rank"),
        pod=_read_text(raw, "pod", MAX_NAME),
        node=_read_text(raw, "node", MAX_NAME),
        container=_read_text(raw, "container", MAX_NAME),
        exit_code=_read_number(raw, "exitCode"),
        reason=_read_text(raw, "reason", MAX_NAME),
        message=_read_text(raw, "message", MAX_MESSAGE),
        attempt=_read_number(raw, "attempt") or 1,
        at=read_time(raw.get("time")),
        log=log_lines("\n".join(line for line in log if isinstance(line, str))) if isinstance(log, list) else (),
        others=_read_number(raw, "failedAfter") or 0,
    )


def _read_text(raw: Json, name: str, limit: int) -> str:
    value = raw.get(name)
    return one_line(value, limit) if isinstance(value, str) else ""


def _read_number(raw: Json, name: str) -> int | None:
    value = raw.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else None


def signal_name(code: int | None) -> str:
    """The name of the signal of an exit code above 128, which is 128 and the number of the signal; else empty."""
    if code is None or not 128 < code <= 128 + 64:
        return ""
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return ""


# Texts ----------------------------------------------------------------------------------------------------------------


def one_line(text: str, limit: int) -> str:
    """The text without control characters and line breaks, truncated."""
    return cut(" ".join(printable(text[: 4 * limit]).split()), limit)


def log_lines(text: str) -> tuple[str, ...]:
    """The last lines of a log that are not empty, printable and bounded. Of a line that a program has overwritten with
    carriage returns, such as a progress bar, only the last state is left."""
    lines: list[str] = []
    size = 0
    for raw in reversed(text.rsplit("\n", 4 * MAX_LINES)[-4 * MAX_LINES :]):
        shown = printable(raw.rstrip("\r").rpartition("\r")[2][: 4 * MAX_LINE]).rstrip()
        if not shown.strip():
            continue
        line = cut(shown, MAX_LINE)
        size += len(line.encode("utf-8", "replace"))
        if lines and (size > MAX_LOG or len(lines) == MAX_LINES):
            break
        lines.append(line)
    return tuple(reversed(lines))


# The order of failures ------------------------------------------------------------------------------------------------


def mark_consequences(failures: Iterable[Failure]) -> list[Failure]:
    """The failures in the order in which they happened. All that follow from the first one are marked; it has their
    number."""
    ordered = sorted(failures, key=_order)
    if not ordered:
        return []
    first, *later = ordered
    marked = [replace(each, consequence=follows(each, first)) for each in later]
    return [replace(first, others=max(first.others, len(later)), consequence=False), *marked]


def find_cause(standing: Sequence[Failure], past: Sequence[Failure] = ()) -> Failure | None:
    """The root cause: the first of the `standing` failures, those of replicas that are down now, or without any the
    latest of the `past` ones, from which a replica was restarted. An earlier past failure is the cause if that follows
    from it. None if nothing has failed."""
    ordered, earlier = sorted(standing, key=_order), sorted(past, key=_order)
    if not ordered and not earlier:
        return None
    cause = ordered[0] if ordered else earlier[-1]
    cause = next((each for each in earlier if each.at is not None and follows(cause, each)), cause)
    after = sum(_order(each) > _order(cause) and each.replica != cause.replica for each in (*ordered, *earlier))
    return replace(cause, others=cause.others + after, consequence=False)


def follows(later: Failure, first: Failure) -> bool:
    """Whether a failure is the consequence of an earlier one of another replica."""
    if later.replica == first.replica or later.at is None or first.at is None or later.at < first.at:
        return False
    apart = later.at - first.at
    if lost_a_peer(later):
        return apart <= SLOW_TIMEOUT
    return apart <= COLLECTIVE_TIMEOUT and (later.began is None or later.began <= first.at)


def lost_a_peer(failure: Failure) -> bool:
    """Whether a replica ended like a program that has lost a peer."""
    return failure.exit_code in PEER_CODES or any(_PEER_TEXT.search(line) for line in failure.log)


def _order(failure: Failure) -> tuple[datetime, bool, datetime, str, int]:
    """By time, of which the API has whole seconds. Within one second, a replica that ended as if it had lost a peer
    comes last, and of the others the one that started first comes first."""
    end, began = failure.at or LATEST, failure.began or LATEST
    return end, lost_a_peer(failure), began, failure.role, failure.index or 0


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
    "EvictionRequested": "was asked to leave its node",
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
