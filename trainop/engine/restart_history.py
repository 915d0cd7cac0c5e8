"""Restart history: the restarts of a job, stored in an annotation of the job and counted once per pod UID.

It is written before a pod is deleted, so that repeating a reconcile counts nothing twice. Failures of the user's code
count towards `backoffLimit`; disruptions (eviction, preemption, node loss, deletion by other clients) are counted
apart, by default without limit. Repeated restarts of a role are delayed by an exponential back-off, so that a program
that can never start does not load the cluster.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.status import format_time
from trainop.runtime.lowlevel import read_time

RESTARTS = ANNOTATION_PREFIX + "restarts"
MAX_BACKOFF = 300.0
"""Longest delay between restarts, in seconds."""
BACKOFF_RESET_AFTER = 600.0
"""Seconds without a restart after which the back-off starts again."""
MAX_COUNT = 2**31 - 1
"""Largest valid count; larger stored values are ignored."""
MAX_ROUNDS = 32
"""Stored entries of rounds that are read; no kind has as many roles."""

DIGEST_LENGTH = 8
"""Letters of the digest of a pod UID."""
SHORT = 5
"""Letters of the digest in the entry of a lost pod; the index of its slot takes the other three."""
MAX_IN_PLACE = 64**3 - 1
"""Largest number of restarts of one pod that has an entry."""
_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
_LOST = re.compile(f"[-_A-Za-z0-9]{{{DIGEST_LENGTH}}}")


class Rounds(NamedTuple):
    """Number and time of the latest consecutive restarts of a restart group. Pods that fail together are one round."""

    number: int
    last: datetime


class RestartHistory:
    """The parsed annotation with methods to add entries; `text` returns its new value. Invalid content counts as empty.

    Pods are stored as short digests of their UIDs without separators, so that 30,000 of them fit into the 256 KiB that
    the API server allows for all annotations of an object. Entries are dropped when their pods are gone. The annotation
    contains the job's UID, so that a copied manifest starts with an empty history.
    """

    def __init__(self, job_uid: str, annotations: Mapping[str, str]) -> None:
        stored = _read(annotations.get(RESTARTS, ""))
        if stored.get("job") != job_uid:
            stored = {}
        self._job_uid = job_uid
        self.failures = _read_count(stored.get("failures"))
        self.disruptions = _read_count(stored.get("disruptions"))
        self._counted = unpack(stored.get("settled"))
        self._lost = dict(_read_lost(stored.get("lost")))
        self._rounds = dict(_read_rounds(stored.get("rounds")))
        self._in_place = _read_counts(stored.get("inPlace"))
        self.burst = read_time(burst) if isinstance(burst := stored.get("burst"), str) else None
        """Since when replicas restart in place, as one restart; None: none does."""
        stopped = stored.get("stopped")
        self.stopped = stopped if isinstance(stopped, str) else ""
        """The exceeded limit that failed the job (`limits.Limit`), or empty. The pods of such a job are deleted under
        every `cleanPodPolicy`."""
        self.whole = stored.get("whole") is True
        """The last restart is one of the whole job, whatever its annotation restart-scope says (`restarts_whole`)."""
        self.changed = False
        """Whether entries were added or removed since reading, so that the annotation must be written."""

    @property
    def used(self) -> bool:
        """Whether any pod of the job has been restarted or lost."""
        found = self.failures or self.disruptions or self._counted or self._lost or self._rounds or self._in_place
        return bool(found)

    def is_counted(self, pod_uid: str) -> bool:
        """Whether the pod's restart is counted, or the operator itself deletes the pod: its end is then not a new
        failure."""
        return bool(self._counted) and digest_of(pod_uid) in self._counted

    def mark_counted(self, pod_uid: str) -> None:
        """Marks the pod before the operator deletes it."""
        if not self.is_counted(pod_uid):
            self._counted.add(digest_of(pod_uid))
            self.changed = True

    def restarts_whole(self, pod_uids: Iterable[str]) -> bool:
        """Whether a restart of the whole job is under way, given the UIDs of all remaining pods: some of those that
        were counted are left."""
        return self.whole and any(map(self.is_counted, pod_uids))

    def count(self, failures: int, disruptions: int) -> None:
        """Adds restarts to both budgets. Their pods must be passed to `mark_counted`."""
        self.failures += failures
        self.disruptions += disruptions

    def begin_round(self, role: str, created: datetime | None, now: datetime) -> None:
        """Starts a round for the restart of a pod `created` at this time, unless the pod is older than the last round
        and so belongs to it. `created` is in the API server's clock, which may be ahead of ours; no round starts during
        a back-off either, because no newer pod is created then."""
        number, last = self._rounds.get(role, Rounds(0, now))
        if number and (now - last).total_seconds() > BACKOFF_RESET_AFTER:
            number = 0
        if not number or (created is not None and created >= last and not self.wait(role, now)):
            self._rounds[role] = Rounds(number + 1, now.replace(microsecond=0))

    def wait(self, role: str, now: datetime) -> float:
        """Seconds of back-off left before pods of the role may be created: none in the first round, then 1, 2, 4 ... If
        the last round is in the future, the clock was set back; its age is unknown, and there is no back-off."""
        number, last = self._rounds.get(role, Rounds(0, now))
        if number < 2:
            return 0.0
        pause = min(2.0 ** min(number - 2, 10), MAX_BACKOFF)
        passed = (now - last).total_seconds()
        return max(0.0, pause - passed) if passed >= 0 else 0.0

    def longest_wait(self, now: datetime) -> float:
        """Seconds of back-off left of all restart groups."""
        return max((self.wait(group, now) for group in self._rounds), default=0.0)

    def is_soon(self, role: str, now: datetime) -> bool:
        """Whether less time has passed since the last round than the next round would wait for, so that pods must not
        restart at once. A last round in the future is of a clock that was set back."""
        number, last = self._rounds.get(role, Rounds(0, now))
        passed = (now - last).total_seconds()
        return bool(number) and 0 <= passed < min(2.0 ** min(number - 1, 10), MAX_BACKOFF)

    def begin_burst(self, role: str, now: datetime) -> None:
        """Starts a round of restarts in place. Its pods must be passed to `settle_in_place` or `mark_counted`."""
        self.burst = now.replace(microsecond=0)
        self.begin_round(role, now, now)
        self.changed = True

    def end_burst(self) -> None:
        """Pods are restarted by recreation instead."""
        self.changed |= self.burst is not None
        self.burst = None

    def restarts_in_place(self, pod_uid: str) -> int:
        """How often the pod has restarted in place before the present burst."""
        return self._in_place.get(digest_of(pod_uid)[:SHORT], 0) if self._in_place else 0

    def settle_in_place(self, restarts: Mapping[str, int]) -> None:
        """Ends a burst: records how often each pod, by UID, has restarted in place. Of pods with one digest the larger
        number counts, so that no restart is invented."""
        self._in_place = {}
        for uid, count in restarts.items():
            if count > 0:
                digest = digest_of(uid)[:SHORT]
                self._in_place[digest] = max(min(count, MAX_IN_PLACE), self._in_place.get(digest, 0))
        self.burst = None
        self.changed = True

    def last_round(self, role: str) -> datetime | None:
        """When the role last began a round; None if it has had none."""
        return self._rounds[role].last if role in self._rounds else None

    def record_lost(self, role: str, index: int, pod_uid: str) -> None:
        """Records that another client deletes the pod of this slot under policy Never. Unless the pod still succeeds,
        it counts as failed once it is gone."""
        digest = digest_of(pod_uid)[:SHORT]
        if self._lost.get((role, index)) != digest:
            self._lost[role, index] = digest
            self.changed = True

    def clear_lost(self, role: str, index: int) -> None:
        """Removes the record of a lost pod, because it has succeeded."""
        if self._lost.pop((role, index), None) is not None:
            self.changed = True

    def clear_lost_beyond(self, replicas: Mapping[str, int]) -> None:
        """Removes records of slots that the job no longer has, given the replicas of each role: a lost replica that is
        scaled away is no failure, even if the job is scaled up again."""
        for role, index in [slot for slot in self._lost if slot[1] >= replicas.get(slot[0], 0)]:
            self.clear_lost(role, index)

    def lost(self, role: str, pod_uids: Iterable[str]) -> tuple[int, ...]:
        """The indices of the recorded lost pods of the role that are gone, given the UIDs of all remaining pods."""
        recorded = [(index, digest) for (type_, index), digest in self._lost.items() if type_ == role]
        left = {digest_of(uid)[:SHORT] for uid in pod_uids} if recorded else set()
        return tuple(sorted(index for index, digest in recorded if digest not in left))

    def text(self, pod_uids: Iterable[str]) -> str:
        """The new value of the annotation; entries of pods that no longer exist are dropped."""
        left = {digest_of(uid) for uid in pod_uids}
        short = {digest[:SHORT] for digest in left}
        lost: dict[str, list[str]] = {}
        for (role, index), digest in sorted(self._lost.items()):
            if digest in short:
                lost.setdefault(role, []).append(_write_index(index) + digest)
        entries = {
            "job": self._job_uid,
            "failures": self.failures,
            "disruptions": self.disruptions,
            "settled": pack(self._counted & left),
            "rounds": {role: [number, format_time(last)] for role, (number, last) in sorted(self._rounds.items())},
            "lost": {role: "".join(entries) for role, entries in lost.items()},
            "inPlace": "".join(_write_index(self._in_place[it]) + it for it in sorted(self._in_place.keys() & short)),
            "burst": format_time(self.burst) if self.burst is not None else "",
            "whole": self.whole and bool(self._counted & left),
            "stopped": self.stopped,
        }
        return json.dumps({name: value for name, value in entries.items() if value}, separators=(",", ":"))


def _read(text: str) -> dict[str, object]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_rounds(stored: object) -> Iterator[tuple[str, Rounds]]:
    for role, entry in islice(stored.items(), MAX_ROUNDS) if isinstance(stored, dict) else ():
        match entry:
            case [number, str(text)] if _read_count(number) and (last := read_time(text)) is not None:
                yield role, Rounds(number, last)


def _read_lost(stored: object) -> Iterator[tuple[tuple[str, int], str]]:
    for role, packed in stored.items() if isinstance(stored, dict) else ():
        for entry in unpack(packed):
            if _LOST.fullmatch(entry):
                yield (role, _read_index(entry[:-SHORT])), entry[-SHORT:]


def _read_counts(packed: object) -> dict[str, int]:
    entries = filter(_LOST.fullmatch, unpack(packed))
    return {entry[-SHORT:]: _read_index(entry[:-SHORT]) for entry in sorted(entries)}


def _write_index(index: int) -> str:
    """The index as three letters of six bits each."""
    return "".join(_LETTERS[index >> shift & 63] for shift in (12, 6, 0))


def _read_index(text: str) -> int:
    return sum(_LETTERS.index(letter) << shift for letter, shift in zip(text, (12, 6, 0), strict=True))


def _read_count(value: object) -> int:
    """A stored count, or 0 if it is not a valid one. The upper bound also avoids integers that Python cannot format."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_COUNT else 0


def digest_of(uid: str) -> str:
    digest = hashlib.blake2s(uid.encode("utf-8", "replace"), digest_size=6).digest()
    return base64.urlsafe_b64encode(digest).decode()


def pack(digests: Iterable[str]) -> str:
    return "".join(sorted(digests))


def unpack(packed: object) -> set[str]:
    text = packed if isinstance(packed, str) else ""
    return {text[start : start + DIGEST_LENGTH] for start in range(0, len(text), DIGEST_LENGTH)}
