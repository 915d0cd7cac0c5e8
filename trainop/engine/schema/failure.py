"""The schema of `status.lastFailure`, which all kinds of jobs have."""

from __future__ import annotations

from trainop.engine.schema.openapi import fields, int32, moment, text, words
from trainop.runtime import Json


def last_failure() -> Json:
    return fields(
        "The root cause of the job's end or of its latest restart: the replica that failed first. It stays when the "
        "pods are deleted.",
        {
            "role": text("The type of the replica; absent if no replica failed, such as at a deadline."),
            "index": int32("The index of the replica."),
            "rank": int32("Its rank, if the kind gives its replicas one."),
            "pod": text("The name of its pod."),
            "node": text("The node of its pod."),
            "container": text("The container that failed."),
            "exitCode": int32("The exit code of the container; absent if it is unknown."),
            "signal": text("The name of the signal that ended it, such as SIGKILL."),
            "reason": text(
                "Why, in one word of Kubernetes, such as Error, OOMKilled or Evicted; Deleted if another client "
                "deleted the pod; or the limit of the job that was reached."
            ),
            "message": text("What the kubelet, a controller or the API server says about it."),
            "attempt": int32("1 and the number of restarts before."),
            "time": moment("When it failed."),
            "log": words("The last lines of its log, or its termination message."),
            "failedAfter": int32("How many other replicas failed after it."),
        },
    )
