"""Extensions of the API: annotations of the job, the same for every kind and all optional (`docs/annotations.md`).

`parse` reads and validates them. Annotations are used because typed clients drop spec fields that they do not know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainop.engine.durations import parse_duration
from trainop.engine.fields import Fields, find_word

ANNOTATION_PREFIX = "trainop.kubeflow.org/"

RESTART_SCOPE = ANNOTATION_PREFIX + "restart-scope"
"""Scope of a restart: the failed `pod`, all pods of its `role`, or all pods of the `job`."""
SERVICE_MODE = ANNOTATION_PREFIX + "service-mode"
"""The services by which replicas find each other: one for every `replica`, only those of the `leader`s that other
replicas connect to, or one for the whole `job`. Overrides the operator's `--service-mode`."""
INFRA_RESTART_LIMIT = ANNOTATION_PREFIX + "infra-restart-limit"
"""Limit of restarts after disruptions (eviction, preemption, node loss); beyond it the job fails."""

CHECKPOINT_GRACE = ANNOTATION_PREFIX + "checkpoint-grace"
"""The least grace period of the job's pods, a Go duration: the time to save a checkpoint in after SIGTERM."""
ON_DISRUPTION = ANNOTATION_PREFIX + "on-disruption"
"""`checkpoint-all`: when another client begins to end one pod, all pods of the job are ended, so that they save
together, and the whole job restarts. `checkpoint-and-respond`: so it does when an Eviction asks for one, which the
operator answers (`evictions`)."""

RESTART_MODE = ANNOTATION_PREFIX + "restart-mode"
"""`in-place`: after a failure the containers restart in their pods, and the pods stay (`in_place`)."""
AVOID_BAD_NODES = ANNOTATION_PREFIX + "avoid-bad-nodes"
"""`required` or `preferred`: new pods are kept away from nodes on which pods of the job have ended repeatedly."""
BAD_NODE_AFTER = ANNOTATION_PREFIX + "bad-node-after"
"""How many pods have to end on a node until it is avoided."""
BAD_NODE_FOR = ANNOTATION_PREFIX + "bad-node-for"
"""How long it is avoided after the last of them, a duration."""
BAD_NODES = ANNOTATION_PREFIX + "bad-nodes"
"""Written by the operator: the nodes on which pods of the job have ended."""

GANG_TOPOLOGY = ANNOTATION_PREFIX + "gang-topology"
"""The key of a node label: kube-scheduler puts all pods of the gang on nodes with the same value of it."""
GANG_DISRUPTION = ANNOTATION_PREFIX + "gang-disruption"
"""Whether kube-scheduler preempts a `single` pod of the gang or `all` together."""
GANG_CLAIMS = ANNOTATION_PREFIX + "gang-claims"
"""Names of `resourceClaims` of the pod templates, separated by commas, that the pods of the gang share."""

TRAIN_NODE = ANNOTATION_PREFIX + "train-node"
"""Written by the operator on the jobs that it makes of TrainJobs: the name of the container that runs the framework, in
place of that of the kind. Their pods have the label `batch.kubernetes.io/job-completion-index`."""

SCOPES = ("pod", "role", "job")
MODES = ("replica", "leader", "job")
CHECKPOINT_ALL = "checkpoint-all"
CHECKPOINT_AND_RESPOND = "checkpoint-and-respond"
IN_PLACE = "in-place"
MAX_RESTART_LIMIT = 2**31 - 1
MIN_GRACE, MAX_GRACE = 1, 3600
"""Seconds. A drain, and whoever preempts the job, waits for the whole grace period."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a job asks for so that its replicas can save when their pods are ended."""

    grace: int = 0
    """Seconds; 0: the grace periods are those of the templates."""
    together: bool = False
    """The disruption of one pod ends all."""
    responds: bool = False
    """The operator answers the Evictions of the pods. Only with `together`."""

    @property
    def asked(self) -> bool:
        return bool(self.grace or self.together)


NO_CHECKPOINT = Checkpoint()


@dataclass(frozen=True, slots=True)
class Extensions:
    """The parsed annotations. An invalid value counts as not given; a value in wrong case is accepted with an error."""

    restart_scope: str = "pod"
    service_mode: str | None = None
    infra_restart_limit: int | None = None
    checkpoint: Checkpoint = NO_CHECKPOINT
    in_place: bool = False
    """The job restarts in place, which is possible and asked for (`in_place.settle_mode`)."""
    restart_rules: bool = False
    """New pods get rules by which the kubelet restarts all of their containers."""


def read_extensions(fields: Fields, annotations: Mapping[str, str]) -> Extensions:
    """Parses the annotations; errors are added to `fields`."""
    return Extensions(
        restart_scope=_read_choice(fields, annotations, RESTART_SCOPE, SCOPES) or "pod",
        service_mode=_read_choice(fields, annotations, SERVICE_MODE, MODES),
        infra_restart_limit=_read_limit(fields, annotations, INFRA_RESTART_LIMIT),
        checkpoint=read_checkpoint(annotations),
    )


def read_checkpoint(annotations: Mapping[str, str]) -> Checkpoint:
    """Parses the annotations about checkpoints. What is wrong with them is no error of the job: a Warning says it
    (`checkpoint.doubt_checkpoint`)."""
    if CHECKPOINT_GRACE not in annotations and ON_DISRUPTION not in annotations:
        return NO_CHECKPOINT
    seconds = read_grace(annotations.get(CHECKPOINT_GRACE, "")) or 0
    asked = annotations.get(ON_DISRUPTION)
    responds = asked == CHECKPOINT_AND_RESPOND
    return Checkpoint(min(seconds, MAX_GRACE), together=responds or asked == CHECKPOINT_ALL, responds=responds)


def read_grace(text: str) -> int | None:
    """Whole seconds, rounded up, of which only those up to `MAX_GRACE` mean anything; None if the text is no duration
    of at least `MIN_GRACE`."""
    try:
        seconds = parse_duration(text.strip())
    except ValueError:
        return None
    return math.ceil(min(seconds, MAX_GRACE + 1)) if seconds >= MIN_GRACE else None


def _read_choice(fields: Fields, annotations: Mapping[str, str], name: str, supported: tuple[str, ...]) -> str | None:
    value = annotations.get(name)
    if value is None or value in supported:
        return value
    fields.unsupported(_path(name), value, supported)
    return find_word(value, supported)


def _read_limit(fields: Fields, annotations: Mapping[str, str], name: str) -> int | None:
    value = annotations.get(name)
    if value is None:
        return None
    if re.fullmatch("[0-9]{1,10}", value) and int(value) <= MAX_RESTART_LIMIT:
        return int(value)
    fields.invalid(_path(name), value, f"must be a whole number from 0 to {MAX_RESTART_LIMIT}")
    return None


def _path(name: str) -> str:
    return f"metadata.annotations[{name}]"
