"""The record of one request of di-server: a JSON annotation of the Lease that the request holds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from trainop.diserver.replies import Answer
from trainop.diserver.seen import PodId
from trainop.kinds.dijob.names import JOURNAL
from trainop.runtime import Json
from trainop.runtime.lowlevel import read_time

MAX_RECORD = 200_000
"""Bytes of a record; an annotation may have 256 KiB. A longer record is kept without its answer and deletions."""


class JobKey(NamedTuple):
    """Identifies a DIJob; one that was deleted and created again has another `uid`."""

    namespace: str
    name: str
    uid: str


class UnsentAnswer(msgspec.Struct, frozen=True):
    """The answer of an earlier request for the job, which its client did not get."""

    digest: str
    """That of the request."""
    at: str
    """RFC 3339 time at which it was recorded."""
    status: int
    body: str


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one request, as JSON in the annotation `JOURNAL` of its Lease. Servers of other versions read it:
    fields may be added, but not renamed."""

    request: str
    """A random identity, which the pods of the request have in an annotation."""
    namespace: str
    job: str
    uid: str
    """That of the job."""
    digest: str = ""
    """The hash of method, path, caller and body: equal if a client repeats a request."""
    state: str = "open"
    """`open`, `decided` or `unsent`: `journal.py` says what each demands of another server."""
    delete: Sequence[str] = ()
    """Names of the pods that a decided request deletes."""
    uids: Sequence[str] = ()
    """Their UIDs, in the same order."""
    status: int = 0
    """HTTP status of the answer; 0 while there is none."""
    body: str = ""
    earlier: Sequence[UnsentAnswer] = ()

    @property
    def key(self) -> JobKey:
        return JobKey(self.namespace, self.job, self.uid)

    @property
    def deleted(self) -> list[PodId]:
        """The pods of `delete`; a record of an older release has no UIDs."""
        return [PodId(*pair) for pair in zip_longest(self.delete, self.uids[: len(self.delete)], fillvalue="")]

    @property
    def answer(self) -> Answer | None:
        return Answer(self.status, self.body.encode()) if self.status else None


encode = msgspec.json.Encoder().encode
"""The bytes of a record."""
_decode = msgspec.json.Decoder(Record).decode


def fit(record: Record) -> Record:
    """The record without as many of the earliest answers as are too much for an annotation."""
    while record.earlier and len(encode(record)) > MAX_RECORD:
        record = msgspec.structs.replace(record, earlier=record.earlier[:-1])
    return record


def undelivered(record: Record, lease: Json, now: datetime, remembered: float) -> list[UnsentAnswer]:
    """The answers that their clients did not get, and may still ask for within `remembered` seconds."""
    written = str(spec_of(lease).get("renewTime"))
    last = [UnsentAnswer(record.digest, written, record.status, record.body)] if record.answer is not None else []
    found = []
    for past in (*last, *record.earlier):
        at = read_time(past.at)
        if at is not None and (now - at).total_seconds() < remembered:
            found.append(past)
    return found


def read_record(lease: Json) -> Record | None:
    """The record in a Lease; None if it has none, or one that nobody can read."""
    try:
        return _decode((lease["metadata"].get("annotations") or {}).get(JOURNAL, ""))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def spec_of(lease: Json) -> Json:
    """The spec of a Lease, which one that somebody else made may lack."""
    return lease.get("spec") or {}
