"""What a plan asks for: the actions that the shell carries out, and what it reports. All are values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import Resource
from trainop.runtime.texts import LONGEST_REASON, cut


@dataclass(frozen=True, slots=True)
class CreatePod:
    """`encode` makes the manifest as JSON when it is to be sent, so that there are no more of them than requests."""

    name: str
    encode: Callable[[], bytes] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CreateService:
    """As `CreatePod`."""

    name: str
    encode: Callable[[], bytes] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DeletePod:
    """`uid` is the precondition: a successor of the same name is never hit. `force` means grace period 0."""

    name: str
    uid: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class DeleteService:
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Apply:
    """Make a companion what `manifest` says, by server-side apply. `uid` is that of the object that was seen; it is
    empty if none was, and then an object of this name that belongs to somebody else is left alone."""

    resource: Resource
    manifest: Json
    uid: str = ""
    essential: bool = True
    """Pods cannot do without it: the job fails if the API server refuses it."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Of a companion."""

    resource: Resource
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Put our owner reference on an orphan, after one live look per pass that the job is still there."""

    kind: str
    """`Pod` or `Service`."""
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Release:
    """Take our owner reference off an object whose labels no longer match."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """The time to live after finishing is over."""


Action: TypeAlias = CreatePod | CreateService | DeletePod | DeleteService | Apply | Delete | Adopt | Release | DeleteJob


@dataclass(frozen=True, slots=True)
class Event:
    """About the job; `type` is Normal or Warning. Long texts are cut."""

    type: str
    reason: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", cut(self.reason, LONGEST_REASON))
        object.__setattr__(self, "message", cut(self.message))


@dataclass(frozen=True, slots=True)
class Count:
    """Steps of a counter: of jobs `created`, `successful`, `failed`, `restarted` (once a pod), and `failed_pods`."""

    counter: str
    by: int = 1


@dataclass(frozen=True, slots=True)
class Notice:
    """An event that states what is so, not what changed: reported once for each new `identity` and message."""

    identity: str
    event: Event
    routine: bool = False
    """Every pod that does well has one: told only if asked for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about one snapshot, in this order: annotations, then status and actions as `status_first` says.

    A terminal status is written before clean-up begins; otherwise actions go first and status follows. Events and
    counts of `transitions` are reported once status and annotations are written, `notices` when they are new.
    """

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    """Merged into the job's annotations under its resourceVersion, before anything else; None removes."""
    status: Json | None = None
    """The whole new status; None if it is to stay as it is."""
    status_first: bool = False
    actions: tuple[Action, ...] = ()
    transitions: tuple[Event | Count, ...] = ()
    notices: tuple[Notice, ...] = ()
    annotations_required: bool = field(default=True, compare=False)
    """Otherwise the rest is carried out even if the API server refuses the annotations: a job must come to its end."""
    begun: bool = field(default=False, compare=False)
    """The job has had pods: what the API server refuses does not end it."""
    requeue_after: float | None = None
    """Seconds until the next look is due even if nothing happens: a deadline, a time to live."""
