"""`ChildSelection`: how the caches find the pods and services of a kind, and what they keep of them.

`TRAINING_CHILDREN` is the selection of all kinds whose children have the labels of training-operator. They share its
informers. A kind with other labels has informers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from trainop.engine.actions import Event
from trainop.engine.framework import JOB_NAME, OPERATOR_NAME
from trainop.engine.seen import Pod, Service, UnreadablePod
from trainop.runtime import Decoder, HasMetadata, Metadata
from trainop.runtime.lowlevel import MAX_DETAIL, cut


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChildSelection:
    """The labels of the pods and services of a kind, and their decoders."""

    watch: str
    """The label selector of the watches: only children that it matches are cached."""
    controller_label: str
    """The label whose value is the name of the controller."""
    job_label: str
    """The label whose value is the name of the job."""
    constant_labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels of all children."""
    decode_pod: Decoder[Pod]
    decode_service: Decoder[Service]

    def labels(self, controller: str, job_name: str) -> dict[str, str]:
        """The labels of all pods and services of a job."""
        own = {self.controller_label: controller, self.job_label: job_name.replace("/", "-")}
        return {**self.constant_labels, **own}

    def by_job(self, child: HasMetadata) -> Iterable[str]:
        """Index function: the job that the labels of a child name."""
        metadata = child.metadata
        controller, job = metadata.labels.get(self.controller_label), metadata.labels.get(self.job_label)
        return () if controller is None or job is None else (f"{metadata.namespace}/{controller}/{job}",)

    def index_value(self, namespace: str, controller: str, job_name: str) -> str:
        """What `by_job` yields for the children of a job."""
        return f"{namespace}/{controller}/{job_name.replace('/', '-')}"

    def is_of(self, controller: str, child: Metadata) -> bool:
        """Whether the labels of a child name this controller, so that the caches have it."""
        return child.labels.get(self.controller_label) == controller


_decode_whole_pod: Callable[[bytes], Pod] = msgspec.json.Decoder(Pod).decode
_decode_metadata: Callable[[bytes], Service] = msgspec.json.Decoder(Service).decode

decode_service: Callable[[bytes], Service] = msgspec.json.Decoder(Service).decode


def decode_pod(raw: bytes) -> Pod:
    """Decodes a pod; returns an `UnreadablePod` if only its metadata is valid. Raises `msgspec.MsgspecError` or
    `ValueError` if not even that."""
    try:
        return _decode_whole_pod(raw)
    except (msgspec.MsgspecError, ValueError) as error:
        return UnreadablePod(_decode_metadata(raw).metadata, fault=cut(str(error), MAX_DETAIL))


TRAINING_CHILDREN = ChildSelection(
    watch=OPERATOR_NAME,
    controller_label=OPERATOR_NAME,
    job_label=JOB_NAME,
    decode_pod=decode_pod,
    decode_service=decode_service,
)
"""The labels of training-operator and mpi-operator."""


class ChildEvents(NamedTuple):
    """Reasons and messages of the events about pods and services. Format strings with fields `kind` (`Pod`), `noun`
    (`pod`), `name`, and `error` if there was one."""

    created: tuple[str, str] = ("SuccessfulCreate{kind}", "Created {noun}: {name}")
    not_created: tuple[str, str] = ("FailedCreate{kind}", "Error creating: {error}")
    deleted: tuple[str, str] = ("SuccessfulDelete{kind}", "Deleted {noun}: {name}")
    not_deleted: tuple[str, str] = ("FailedDelete{kind}", "Error deleting: {error}")

    def event(self, texts: tuple[str, str], kind: str, name: str, error: object = None) -> Event:
        """The event about a child of this kind: Normal, or with an error Warning."""
        about = {"kind": kind, "noun": kind.lower(), "name": name, "error": error}
        type_ = "Normal" if error is None else "Warning"
        return Event(type_, texts[0].format_map(about), texts[1].format_map(about))
