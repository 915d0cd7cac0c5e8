"""`Status`: the new status of a job, with its conditions, replica counters and times.

Conditions follow training-operator `pkg/util/status.go`. Their order matters, because the printer column State shows
the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from trainop.engine.fields import as_list, as_object
from trainop.engine.framework import REPLICA_TYPE, Tally
from trainop.engine.root_cause import LAST_FAILURE
from trainop.runtime import Json
from trainop.runtime.lowlevel import cut, read_time, timestamp

CREATED = "Created"
RUNNING = "Running"
RESTARTING = "Restarting"
SUSPENDED = "Suspended"
SUCCEEDED = "Succeeded"
FAILED = "Failed"
GANG_READY = "GangReady"
"""False while the job cannot have its PodGroup; otherwise absent."""
WAITING = "Waiting"
"""True while an unfinished job has not moved for long, with what it waits for; otherwise absent."""
TEMPLATE_VALID = "TemplateValid"
"""False if the API server dropped fields from the job's pods; otherwise absent."""
RIGHTS_GRANTED = "RightsGranted"
"""False while objects of others have names that the job needs, so that its account gets no rights for them; otherwise
absent."""


STALLED = "Stalled"
"""True while a job that reported its progress does not any more, False while it reports; absent for jobs that are not
watched, do not run, or have not reported yet."""
STARTED = "Started"
"""Whether all replicas have started since the job began to run, was resumed or restarted. Only of jobs with a startup
deadline."""
RESTARTS_IN_PLACE = "RestartsInPlace"
"""Whether the API server serves what a job needs to restart in place. Only of jobs that ask for it, and may."""


class ConditionRules(NamedTuple):
    """Which conditions exclude each other."""

    removes: Mapping[str, tuple[str, ...]]
    """Condition -> conditions that are removed from the list when it is set."""
    terminal: tuple[str, ...] = (SUCCEEDED, FAILED)
    closes: str = RUNNING
    """The condition that becomes False when a terminal condition is set."""


TRAINING_OPERATOR = ConditionRules(
    removes={
        RUNNING: (RESTARTING,),
        RESTARTING: (RUNNING,),
        SUSPENDED: (RESTARTING,),
        SUCCEEDED: (RESTARTING,),
        FAILED: (RESTARTING,),
    }
)
"""The rules of training-operator `pkg/util/status.go`."""


class Status:
    """Starts as a copy of the stored status; `changed()` returns the new one. Unknown fields are kept."""

    def __init__(self, raw: object, now: datetime, rules: ConditionRules = TRAINING_OPERATOR) -> None:
        self._rules = rules
        self._stored = as_object(raw)
        self._now = format_time(now)
        self._fields = dict(self._stored)
        self.conditions = as_list(self._stored.get("conditions"))

    def changed(self) -> Json | None:
        """The complete new status, or None if it equals the stored one. A change of `lastFailure` alone is no reason to
        write it: the kubelet may restart containers often."""
        new = dict(self._fields)
        if self.conditions or "conditions" in new:
            new["conditions"] = self.conditions
        return None if _without_failure(new) == _without_failure(self._stored) else new

    # Conditions -------------------------------------------------------------------------------------------------------

    def find(self, type_: str) -> Json | None:
        return next((condition for condition in self.conditions if condition.get("type") == type_), None)

    def is_true(self, type_: str) -> bool:
        condition = self.find(type_)
        return condition is not None and condition.get("status") == "True"

    @property
    def finished(self) -> bool:
        return self.is_true(SUCCEEDED) or self.is_true(FAILED)

    def set(self, type_: str, reason: str, message: str, *, status: str = "True") -> bool:
        """Sets a condition. Does nothing if the job has failed, or if the condition has this status and reason already.
        Returns whether anything changed."""
        old = self.find(type_)
        if self.is_true(FAILED) or (old is not None and (old.get("status"), old.get("reason")) == (status, reason)):
            return False
        same = old is not None and old.get("status") == status and old.get("lastTransitionTime")
        removed = (type_, *self._rules.removes.get(type_, ()))
        if status == "True" and type_ in (SUCCEEDED, FAILED, SUSPENDED):
            removed = (*removed, WAITING, STALLED)
        self.conditions = [condition for condition in self.conditions if condition.get("type") not in removed]
        if type_ in self._rules.terminal:
            self.conditions = [
                {**condition, "status": "False"} if condition.get("type") == self._rules.closes else condition
                for condition in self.conditions
            ]
        self.conditions.append(
            {
                "type": type_,
                "status": status,
                "reason": reason,
                "message": cut(message),
                "lastUpdateTime": self._now,
                "lastTransitionTime": same or self._now,
            }
        )
        return True

    def set_first(self, type_: str, status: str, reason: str, message: str) -> None:
        """Sets a condition outside of the rules, as the first of the list, so that the last one still shows the state
        of the job."""
        old = self.find(type_) or {}
        new = {"type": type_, "status": status, "reason": reason, "message": cut(message)}
        if new.items() <= old.items():
            return
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        new |= {"lastUpdateTime": self._now, "lastTransitionTime": since or self._now}
        self.remove(type_)
        self.conditions.insert(0, new)

    def reword(self, type_: str, message: str) -> None:
        """Replaces the message of a condition in its place, if there is one."""
        new = {"message": cut(message), "lastUpdateTime": self._now}
        self.conditions = [each | new if each.get("type") == type_ else each for each in self.conditions]

    def remove(self, type_: str) -> None:
        """Removes a condition."""
        self.conditions = [condition for condition in self.conditions if condition.get("type") != type_]

    # Other fields -----------------------------------------------------------------------------------------------------

    def get(self, field: str) -> object:
        return self._fields.get(field)

    def put(self, field: str, value: object) -> None:
        """Sets a field that only one kind has."""
        self._fields[field] = value

    # Times ------------------------------------------------------------------------------------------------------------

    @property
    def start_time(self) -> datetime | None:
        return read_time(self._fields.get("startTime"))

    @property
    def completion_time(self) -> datetime | None:
        return read_time(self._fields.get("completionTime"))

    def start(self) -> None:
        """Sets startTime, from which the active deadline counts."""
        self._fields["startTime"] = self._now

    def forget_start(self) -> None:
        """Removes startTime: the active deadline does not run."""
        self._fields.pop("startTime", None)

    def complete(self, at: str | None = None) -> None:
        """Sets completionTime to `at` (RFC 3339), by default to now, even if there is one: a value from before the end
        was written by another client, and the time to live would count from it."""
        self._fields["completionTime"] = at or self._now

    # Counters ---------------------------------------------------------------------------------------------------------

    def record(
        self, tallies: Mapping[str, Tally], *, keep: bool = False, labels: Mapping[str, str] | None = None
    ) -> None:
        """Writes replicaStatuses. Entries of removed roles are dropped, unless `keep` because the spec is unreadable.
        `labels`: the selector of the job, if those of its roles are written for the scale subresource."""
        stored = self._fields.get("replicaStatuses")
        kept = stored if isinstance(stored, dict) and keep else {}
        self._fields["replicaStatuses"] = kept | {
            type_: _counters(tally) | ({"selector": selector_text(labels, type_)} if labels is not None else {})
            for type_, tally in tallies.items()
        }

    @property
    def counts_pods(self) -> bool:
        """Whether any counter in replicaStatuses is set."""
        stored = self._fields.get("replicaStatuses")
        entries = stored.values() if isinstance(stored, dict) else ()
        return any(isinstance(entry, dict) and entry.keys() & {"active", "succeeded", "failed"} for entry in entries)

    def clear_counters(self, types: Sequence[str]) -> None:
        """Empties the counters of these roles."""
        stored = self._fields.get("replicaStatuses")
        if types and isinstance(stored, dict):
            self._fields["replicaStatuses"] = stored | {type_: {} for type_ in types if type_ in stored}

    def retire_active(self, *types: str, into: str | None = None) -> None:
        """Removes the `active` counters of these roles, by default of all; with `into` (`succeeded`) they are added to
        that counter."""
        stored = self._fields.get("replicaStatuses")
        if isinstance(stored, dict):
            retired = {type_: _retired(stored[type_], into) for type_ in types or stored if type_ in stored}
            self._fields["replicaStatuses"] = stored | retired


def _without_failure(status: Json) -> Json:
    return {name: value for name, value in status.items() if name != LAST_FAILURE}


def selector_text(labels: Mapping[str, str], type_: str) -> str:
    """The selector of a role's pods in the format of the scale subresource: `k=v,k=v`, keys sorted."""
    own = {**labels, REPLICA_TYPE: type_.lower()}
    return ",".join(f"{key}={value}" for key, value in sorted(own.items()))


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC, whole seconds."""
    return timestamp(moment)


def _counters(tally: Tally) -> Json:
    counts = {"active": tally.active, "succeeded": tally.succeeded, "failed": tally.failed}
    return {name: count for name, count in counts.items() if count}


def _retired(entry: object, into: str | None) -> object:
    if not isinstance(entry, dict):
        return entry
    rest = {name: value for name, value in entry.items() if name != "active"}
    active = entry.get("active")
    if into and isinstance(active, int) and active > 0:
        old = rest.get(into)
        rest[into] = active + (old if isinstance(old, int) else 0)
    return rest
