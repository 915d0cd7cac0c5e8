"""`Plan` and its parts: the actions that the controllers carry out, and the events and counters that they report.

All are immutable values, so that tests compare plans. `trainop/controllers/apply.py` executes the actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import Resource
from trainop.runtime.texts import LONGEST_REASON, cut


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create a pod. `encode` returns the manifest as JSON; it is called right before the request, so that only
    manifests of requests in flight are in memory."""

    name: str
    encode: Callable[[], bytes] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CreateService:
    """Create a service; `encode` as in `CreatePod`."""

    name: str
    encode: Callable[[], bytes] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod. `uid` is the precondition, so that a newer pod of the same name is not deleted. `force`: grace
    period 0."""

    name: str
    uid: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class DeleteService:
    """Delete a service, with `uid` as precondition."""

    name: str
    uid: str
    unless_pod: bool = False
    """Not if the API server has a pod of this name that the job controls, which the caches may not show yet."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Create or update a companion by server-side apply of `manifest`. `uid` is the UID of the object in the snapshot.
    Empty: there was none, and an existing object of this name with another owner is not changed."""

    resource: Resource
    manifest: Json
    uid: str = ""
    essential: bool = True
    """Pods depend on it: the job fails if the API server refuses it."""
    posted: bool = False
    """Created by POST, which needs no read before. Only for objects whose manifests all have the same fields: a later
    apply does not remove a field that a POST has set."""


@dataclass(frozen=True, slots=True)
class CreateOnce:
    """Create a companion that is never rewritten, such as a Secret with random content or a batch Job. If the job has
    it already, it only gets missing labels of `manifest`, by which the caches find it."""

    resource: Resource
    manifest: Json
    fill: Callable[[], Json] | None = field(default=None, compare=False, repr=False)
    """Returns the rest of the manifest. Called in a thread, right before the object is created: the content may be
    expensive or random."""
    is_valid: Callable[[Json], bool] | None = field(default=None, compare=False, repr=False)
    """Whether an existing object is usable; it is called in a thread. One that is not is filled anew."""
    in_use: str = ""
    """Why the content must not change now, such as "workers are running". A missing object is then not created and an
    unusable one not filled: the job gets a Warning, and no later action is carried out."""
    posted: bool = False
    """The object probably does not exist: it is created without a read before."""
    essential: bool = True
    makes_pods: bool = False
    """Another controller makes pods of it: it is not created before their PodGroup."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Apply a JSON merge patch to a companion, with `uid` as precondition. Patches are carried out one by one, in their
    order."""

    resource: Resource
    name: str
    uid: str
    body: Json
    subresource: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a companion, with `uid` as precondition."""

    resource: Resource
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """Create the job's PodGroup. If that fails, the pods of the plan are not created."""

    resource: Resource
    manifest: Json

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """Merge `changes` into the `spec` of the job's PodGroup, with `version` as resourceVersion precondition. Other
    fields keep their values, whoever set them."""

    resource: Resource
    name: str
    version: str
    changes: Json


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Delete the job's PodGroup, with `uid` as precondition."""

    resource: Resource
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Add the job's owner reference to an orphan. Before the first adoption of a reconcile, the job is read from the
    API server, because a deleted job must not adopt."""

    kind: str
    """`Pod` or `Service`."""
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Release:
    """Remove the job's owner reference from an object whose labels no longer match."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job, because its time to live after finishing has passed."""


CompanionAction: TypeAlias = Apply | CreateOnce | Patch
GroupAction: TypeAlias = CreateGroup | UpdateGroup | DeleteGroup
Action: TypeAlias = (
    CreatePod
    | CreateService
    | DeletePod
    | DeleteService
    | CompanionAction
    | Delete
    | GroupAction
    | Adopt
    | Release
    | DeleteJob
)


@dataclass(frozen=True, slots=True)
class Event:
    """An event about the job. `type` is Normal or Warning. Long texts are truncated."""

    type: str
    reason: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", cut(self.reason, LONGEST_REASON))
        object.__setattr__(self, "message", cut(self.message))


@dataclass(frozen=True, slots=True)
class Count:
    """Increments a counter: jobs `created`, `successful`, `failed`, `restarted` (once per restart), or
    `failed_pods`."""

    counter: str
    by: int = 1


@dataclass(frozen=True, slots=True)
class Notice:
    """An event about a state, not a transition: emitted once for each combination of `identity` and message."""

    identity: str
    event: Event
    routine: bool = False
    """Emitted only with `--pod-events`, because every successful pod has one."""


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
    requeue_after: float | None = None
    """Seconds until the job is requeued if no event comes first, such as for a deadline; None: no requeue."""
