"""Restarts in place: what the operator does while the kubelets restart containers.

It counts the restart when the first replica fails, waits until all have restarted, and deletes all pods if they do not.
The kubelet has no back-off for `RestartAllContainers`: a job that fails again sooner than the back-off of its restarts
permits is recreated after it.
"""

from __future__ import annotations

from trainop.engine.actions import delete_pod
from trainop.engine.assess import Assessment, is_watched
from trainop.engine.failures import WHOLE_JOB
from trainop.engine.in_place import RESTART_ALL, RULES, Burst, count_restarts
from trainop.engine.root_cause import LAST_FAILURE, read_failure
from trainop.engine.status import RESTARTING, RESTARTS_IN_PLACE
from trainop.engine.steps.builder import ReplicasBuilder
from trainop.engine.steps.restarts import describe_restart

SERVED, NOT_SERVED = "RestartRulesServed", "RestartRulesNotServed"
"""Reasons of the condition: True and False."""
_SERVED_TEXT = "After a failure the containers restart in their pods"
_NOT_SERVED_TEXT = (
    f"The API server does not serve {RULES} with the action {RESTART_ALL}: replicas with restartPolicy ExitCode are "
    "recreated, and in pods of others only the container that fails restarts"
)


def follow_in_place(builder: ReplicasBuilder, found: Assessment) -> None:
    """Follows the restarts in place of a job that asks for them, or did."""
    _note_mode(builder, found)
    if found.burst is not None:
        _follow_burst(builder, found, found.burst)


def _note_mode(builder: ReplicasBuilder, found: Assessment) -> None:
    """Sets the condition. Restarts from before the first one are not counted."""
    status, served = builder.status, builder.seen.serves_rules
    if not builder.job.extensions.in_place:
        status.remove(RESTARTS_IN_PLACE)
        return
    if not is_watched(builder.seen, status) and any((counts := count_restarts(found.role_slots)).values()):
        found.history.settle_in_place(counts)
    if served is False:
        if (status.find(RESTARTS_IN_PLACE) or {}).get("status") != "False":
            builder.event(NOT_SERVED, _NOT_SERVED_TEXT, "Warning")
        status.set_first(RESTARTS_IN_PLACE, "False", NOT_SERVED, _NOT_SERVED_TEXT)
    elif served or status.find(RESTARTS_IN_PLACE) is None:
        status.set_first(RESTARTS_IN_PLACE, "True", SERVED, _SERVED_TEXT)


def _follow_burst(builder: ReplicasBuilder, found: Assessment, burst: Burst) -> None:
    """Records a burst when it begins and when it is over. Its restart is counted by `restart`."""
    history = found.history
    if burst.begins:
        history.begin_burst(WHOLE_JOB, builder.seen.now)
    if burst.begins or not builder.status.is_true(RESTARTING):  # the status may not have been written when it began
        text = _describe(builder, burst)
        builder.status.set(RESTARTING, builder.reason(RESTARTING), text)
        builder.event(builder.reason(RESTARTING), text, "Warning")
        builder.count("restarted")
    elif _is_new_cause(builder):
        builder.status.reword(RESTARTING, _describe(builder, burst))
    if burst.why:
        history.end_burst()
        for slots in found.role_slots:
            for pod in slots.pods.values():
                history.mark_counted(pod.metadata.uid)
                builder.actions.append(delete_pod(pod))
        builder.event(builder.reason(RESTARTING), describe_restart(builder, burst.why), "Warning")
    elif burst.settled:
        history.settle_in_place(count_restarts(found.role_slots))
    elif burst.left > 0:
        builder.requeue_after(burst.left)


def _describe(builder: ReplicasBuilder, burst: Burst) -> str:
    roles = " and ".join(dict.fromkeys(role.type for role, _ in burst.restarted))
    text = f"{{kind}} {{name}} is restarting in place because {len(burst.restarted)} {roles} replica(s) failed."
    return builder.with_cause(builder.fill(text))


def _is_new_cause(builder: ReplicasBuilder) -> bool:
    """Whether a replica that had failed earlier is seen later. The kubelet soon replaces what it says, so that it is
    written at once."""
    status = builder.seen.job.raw.get("status")
    stored = read_failure(status.get(LAST_FAILURE)) if isinstance(status, dict) else None
    return builder.cause is not None and (stored is None or stored.replica != builder.cause.replica)
