"""`Plan` and its parts: the actions that the controllers carry out, and the events and counters that they report.

All are immutable values, so that tests compare plans. `trainop/controllers/apply.py` executes the actions.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeAlias

from trainop.engine.root_cause import Failure
from trainop.runtime import PODS, HasMetadata, Json, Resource
from trainop.runtime.lowlevel import LONGEST_REASON, cut


@dataclass(frozen=True, slots=True)
class Event:
    """An event about the job. `type` is Normal or Warning. Long texts are truncated."""

    type: str
    reason: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", cut(self.reason, LONGEST_REASON))
        object.__setattr__(self, "message", cut(self.message))


LOOK_AGAIN = 30.0
"""Seconds until a name that another object has, or a namespace that terminates, is looked at again: often an event
comes first, but there need be none."""


class How(enum.Enum):
    """How `Ensure` writes an object."""

    POST = "post"
    """Created. One that the job has already is left as it is."""
    APPLY = "apply"
    """Server-side apply of the manifest."""
    FILL = "fill"
    """Created with its `Content`, and never rewritten, such as a Secret with random content or a batch Job. One that
    the job has already only gets missing labels, by which the caches find it."""


class Need(enum.Enum):
    """What an object is to the job: what happens if the API server refuses it."""

    JOB = "job"
    """The job fails, unless it has begun. Nothing that follows in the plan is done before the object is written."""
    PODS = "pods"
    """No pods are created before it exists. The next plan shows the refusal, and the write is repeated later."""
    NONE = "none"
    """The job goes on without it, and the write is repeated later."""


@dataclass(frozen=True, slots=True)
class Content:
    """The part of a manifest that is expensive or random. All functions are called in a thread."""

    fill: Callable[[], Json]
    """Returns that part. Called right before the object is created."""
    is_valid: Callable[[Json], bool] | None = None
    """Whether an existing object is usable. One that is not is filled anew."""
    is_trusted: bool = True
    """Whether the content of an existing object may be kept. Before the operator has made it, somebody else may have
    created one that names the job as its owner: such an object is filled anew."""


@dataclass(frozen=True, slots=True)
class Ensure:
    """Create or update an owned object: a pod, a service, a PodGroup, or a companion. An object of this name that the
    job does not control is never changed."""

    resource: Resource
    name: str
    encode: Callable[[], bytes] | None = field(default=None, compare=False, repr=False)
    """Returns the manifest as JSON. It is called right before the request, so that only manifests of requests in flight
    are in memory. None: it is `manifest`."""
    manifest: Json = field(default_factory=dict)
    how: How = How.POST
    need: Need = Need.JOB
    uid: str = ""
    """The UID of the object in the snapshot; empty if there was none."""
    posted: bool = False
    """The object probably does not exist: it is created by POST, without a read before. An object that is applied later
    keeps the fields that a POST has set, so that all its manifests must have the same fields."""
    content: Content | None = field(default=None, compare=False, repr=False)
    makes_pods: bool = False
    """Another controller makes pods of it: it is not created before their PodGroup."""
    template: str = field(default="", compare=False)
    """The field path in the job of the pod template that the manifest is made of, for messages."""
    has_rules: bool = False
    """The pod has rules for restarts in place, which the API server may drop or refuse."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Apply a JSON merge patch to an owned object. UID and resourceVersion are preconditions, unless they are empty.
    Patches are carried out one by one, in their order."""

    resource: Resource
    name: str
    uid: str
    body: Json
    subresource: str | None = None
    version: str = ""
    need: Need = Need.JOB
    makes_pods: bool = False
    """Another controller then makes pods of the object: it is not patched before their PodGroup exists."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete an owned object, with `uid` as precondition, so that a newer one of the same name is not deleted."""

    resource: Resource
    name: str
    uid: str
    force: bool = False
    """Grace period 0."""
    grace: int | None = None
    """Seconds of the grace period; None: that of the pod's spec."""
    at_once: bool = False
    """Many are carried out at the same time, because the programs in the pods save together."""
    unless_pod: bool = False
    """Not if the API server has a pod of this name that the job controls, which the caches may not show yet."""
    then: tuple[Event, ...] = ()
    """Events about the deletion."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Add the job's owner reference to an orphan. Before the first adoption of a reconcile, the job is read from the
    API server, because a deleted job must not adopt."""

    resource: Resource
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Release:
    """Remove the job's owner reference from an object whose labels no longer match."""

    resource: Resource
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Write the status of an Eviction, as a JSON merge patch with `version` as precondition. No obstacle to it keeps
    the job from anything."""

    name: str
    version: str
    body: Json
    unless_pod: tuple[str, str] | None = None
    """Name and UID of a pod that the caches do not show. Not if the API server has it."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job, because its time to live after finishing has passed."""


Action: TypeAlias = Ensure | Patch | Remove | Adopt | Release | Answer | DeleteJob


def delete_pod(pod: HasMetadata, grace: int | None = None) -> Remove:
    """The deletion of a pod that is not terminating; `grace`: see `Remove`."""
    return Remove(PODS, pod.metadata.name, pod.metadata.uid, grace=grace)


def is_creation(action: Action, *resources: Resource) -> bool:
    """Whether the action may create an object; with `resources`, one of these."""
    return isinstance(action, Ensure) and (not resources or action.resource in resources)


@dataclass(frozen=True, slots=True)
class Count:
    """Increments a counter: jobs `created`, `successful`, `failed`, `restarted` (once per restart),
    `disrupted`, `stalled`, or `failed_pods`."""

    counter: str
    by: int = 1


@dataclass(frozen=True, slots=True)
class Notice:
    """An event about a state, not a transition: emitted once for each combination of `identity` and message."""

    identity: str
    event: Event
    routine: bool = False
    """Emitted only with `--pod-events`, because every successful pod has one."""
    holds_up: str = ""
    """If the job cannot go on while the state lasts: the reason of the condition Waiting."""


class Wait(NamedTuple):
    """Something that an unfinished job waits for (`trainop.engine.waiting`)."""

    reason: str
    """One of `waiting.REASONS`, for programs."""
    what: str
    """Names the objects, or the cause; it does not change while the state lasts."""
    why: str = ""
    """What else is known, such as a message of a scheduler."""
    since: datetime | None = None
    """None: since the job has last moved."""


class Unstarted(NamedTuple):
    """The replicas of a job that have not started (`trainop.engine.startup`)."""

    pods: tuple[str, ...]
    """The names of their pods, which need not exist."""
    total: int
    """The number of all replicas."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of planning: annotations are written first, then status and actions in the order of `status_first`.

    A terminal status is written before clean-up begins; otherwise the actions are carried out before the status is
    written. `transitions` are reported after status and annotations have been written, `notices` if they are new.
    """

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    """Merged into the job's annotations, with its resourceVersion as precondition. None removes an annotation."""
    status: Json | None = None
    """The complete new status; None: unchanged."""
    status_first: bool = False
    actions: tuple[Action, ...] = ()
    transitions: tuple[Event | Count, ...] = ()
    notices: tuple[Notice, ...] = ()
    annotations_required: bool = field(default=True, compare=False)
    """Otherwise the rest is carried out even if the API server refuses the annotations: a job must come to its end."""
    begun: bool = field(default=False, compare=False)
    """The job has, or once had, pods. A refusal by the API server does not fail such a job."""
    waits: tuple[Wait, ...] | None = field(default=None, compare=False)
    """What the job waits for, besides its pods. None if it is finished or suspended, or left to another controller."""
    unstarted: Unstarted | None = field(default=None, compare=False)
    """None if the job has no startup deadline, is not to run, or waits for its pods to be wanted."""
    cause: Failure | None = field(default=None, compare=False)
    """The root cause of what the plan does about failures."""
    suspend: bool | None = None
    """The value that `spec.runPolicy.suspend` gets last, as a user would set it; None: it stays. The next plan is that
    of a job with the value."""
    requeue_after: float | None = None
    """Seconds until the job is requeued if no event comes first, such as for a deadline; None: no requeue."""
