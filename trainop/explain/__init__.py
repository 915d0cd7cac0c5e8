"""Explanations of jobs for people: causes as values, and the words for them. Pure, for every program that prints them.

How replicas fail, which failure is the root cause, and the words for it are decided by the engine, because the
operator writes them into the status. They are exported here, so that all programs explain a job in the same way.
"""

from trainop.engine.evidence import DELETED, Place, failure_of, past_failure_of, was_stopped
from trainop.engine.root_cause import (
    LAST_FAILURE,
    Failure,
    append_cause,
    describe,
    describe_cause,
    describe_end,
    find_cause,
    follows,
    mark_consequences,
    name_replica,
    read_failure,
    signal_name,
)

__all__ = [
    "DELETED",
    "LAST_FAILURE",
    "Failure",
    "Place",
    "append_cause",
    "describe",
    "describe_cause",
    "describe_end",
    "failure_of",
    "find_cause",
    "follows",
    "mark_consequences",
    "name_replica",
    "past_failure_of",
    "read_failure",
    "signal_name",
    "was_stopped",
]
