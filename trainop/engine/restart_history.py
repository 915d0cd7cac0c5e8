"""The restarts of a job, kept in an annotation of it: counted once for each pod, however often a pass is repeated.

Two budgets: failures of the user's code count against `backoffLimit`; disruptions (eviction, preemption, node loss,
deletion by others) are counted apart and not limited. Whatever the budget, a role whose new pods fail as well is
restarted at a slower pace each time: what can never start must not keep the cluster busy.
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
from trainop.runtime.clock import read_time

RESTARTS = ANNOTATION_PREFIX + "restarts"
MAX_BACKOFF = 300.0
"""Seconds."""
BACKOFF_RESET_AFTER = 600.0
"""Seconds without a restart after which the next one counts as the first."""
MAX_COUNT = 2**31 - 1
"""A stored count above it was not written by us."""
MAX_ROUNDS = 32
"""Entries of rounds that are read: far more than any kind has roles."""

DIGEST_LENGTH = 8
SHORT = 5
"""Letters of a digest: usually, and in the entry of a lost pod, where the index of its slot takes the other three."""
_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
_LOST = re.compile(f"[-_A-Za-z0-9]{{{DIGEST_LENGTH}}}")


class Rounds(NamedTuple):
    """How often a role was restarted in a row, and when last. Pods that fail together are one round."""

    number: int
    last: datetime


class RestartHistory:
    """Reads the annotation, takes entries, and writes it anew. Content that is not ours counts as none.

    Pods appear as short digests of their UIDs, one after another, so that 30,000 of them fit into the 256 KiB that the
    API server allows all annotations of an object; an entry goes when its pod has gone.
    The job's UID is part of it: a copy of the job's manifest, annotations included, begins with no restarts.
    """

    def __init__(self, job_uid: str, annotations: Mapping[str, str]) -> None:
        stored = _read(annotations.get(RESTARTS, ""))
        if stored.get("job") != job_uid:
            stored = {}
        self._job_uid = job_uid
        self.failures = _natural(stored.get("failures"))
        self.disruptions = _natural(stored.get("disruptions"))
        self._counted = _unpack(stored.get("settled"))
        self._lost = dict(_read_lost(stored.get("lost")))
        self._rounds = dict(_read_rounds(stored.get("rounds")))
        stopped = stored.get("stopped")
        self.stopped = stopped if isinstance(stopped, str) else ""
        """The limit that ended the job (`limits.Limit`): its pods are deleted whatever `cleanPodPolicy` says. Empty
        unless a limit was reached."""
        self.changed = False

    @property
    def used(self) -> bool:
        """Whether any pod of the job has been restarted or lost."""
        return bool(self.failures or self.disruptions or self._counted or self._lost or self._rounds)

    def is_counted(self, pod_uid: str) -> bool:
        """The pod is counted already, or deleted by ourselves: its end means nothing new."""
        return bool(self._counted) and _digest(pod_uid) in self._counted

    def mark_counted(self, pod_uid: str) -> None:
        """We are about to delete the pod."""
        if not self.is_counted(pod_uid):
            self._counted.add(_digest(pod_uid))
            self.changed = True

    def count(self, failures: int, disruptions: int) -> None:
        """So many restarts more of each budget; their pods are to be settled."""
        self.failures += failures
        self.disruptions += disruptions

    def begin_round(self, role: str, created: datetime | None, now: datetime) -> None:
        """A pod of the role, created at `born`, is restarted: a new round unless it is of the generation that failed
        before. As `born` is of the API server's clock, which may be ahead of ours, `wait` has to agree: while the role
        waits, no newer pod of it is made, and pods that fail together remain one round."""
        number, last = self._rounds.get(role, Rounds(0, now))
        if number and (now - last).total_seconds() > BACKOFF_RESET_AFTER:
            number = 0
        if not number or (created is not None and created >= last and not self.wait(role, now)):
            self._rounds[role] = Rounds(number + 1, now.replace(microsecond=0))

    def wait(self, role: str, now: datetime) -> float:
        """Seconds until pods of the role may be made anew: none in the first round, then 1, 2, 4 ... A round in the
        future tells that the clock was set back since: nobody knows how long ago it was, and nobody waits for it."""
        number, last = self._rounds.get(role, Rounds(0, now))
        if number < 2:
            return 0.0
        pause = min(2.0 ** min(number - 2, 10), MAX_BACKOFF)
        passed = (now - last).total_seconds()
        return max(0.0, pause - passed) if passed >= 0 else 0.0

    def record_lost(self, role: str, index: int, pod_uid: str) -> None:
        """Somebody else deletes the pod of this slot, which must not be restarted: unless it still succeeds, it is a
        failure."""
        digest = _digest(pod_uid)[:SHORT]
        if self._lost.get((role, index)) != digest:
            self._lost[role, index] = digest
            self.changed = True

    def clear_lost(self, role: str, index: int) -> None:
        """The mourned pod has succeeded after all."""
        if self._lost.pop((role, index), None) is not None:
            self.changed = True

    def clear_lost_beyond(self, replicas: Mapping[str, int]) -> None:
        """Losses count only in slots that the job still has, given the replicas of each role: what was lost and then
        scaled away is no failure, also if the job is scaled up again."""
        for role, index in [slot for slot in self._lost if slot[1] >= replicas.get(slot[0], 0)]:
            self.clear_lost(role, index)

    def lost(self, role: str, pod_uids: Iterable[str]) -> int:
        """How many mourned pods of the role are among those that have gone, given the UIDs of all that are left."""
        mourned = [digest for (type_, _), digest in self._lost.items() if type_ == role]
        left = {_digest(uid)[:SHORT] for uid in pod_uids} if mourned else set()
        return sum(digest not in left for digest in mourned)

    def text(self, pod_uids: Iterable[str]) -> str:
        """The annotation's new value; entries of pods that are not left are dropped."""
        left = {_digest(uid) for uid in pod_uids}
        short = {digest[:SHORT] for digest in left}
        lost: dict[str, list[str]] = {}
        for (role, index), digest in sorted(self._lost.items()):
            if digest in short:
                lost.setdefault(role, []).append(_write_index(index) + digest)
        entries = {
            "job": self._job_uid,
            "failures": self.failures,
            "disruptions": self.disruptions,
            "settled": _pack(self._counted & left),
            "rounds": {role: [number, format_time(last)] for role, (number, last) in sorted(self._rounds.items())},
            "lost": {role: "".join(entries) for role, entries in lost.items()},
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
            case [number, str(text)] if _natural(number) and (last := read_time(text)) is not None:
                yield role, Rounds(number, last)


def _read_lost(stored: object) -> Iterator[tuple[tuple[str, int], str]]:
    for role, packed in stored.items() if isinstance(stored, dict) else ():
        for entry in _unpack(packed):
            if _LOST.fullmatch(entry):
                yield (role, _read_index(entry[:-SHORT])), entry[-SHORT:]


def _write_index(index: int) -> str:
    """Three letters: 18 bits."""
    return "".join(_LETTERS[index >> shift & 63] for shift in (12, 6, 0))


def _read_index(text: str) -> int:
    return sum(_LETTERS.index(letter) << shift for letter, shift in zip(text, (12, 6, 0), strict=True))


def _natural(value: object) -> int:
    """What no count of ours can be is none: Python writes no number of more than 4,300 digits."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_COUNT else 0


def _digest(uid: str) -> str:
    digest = hashlib.blake2s(uid.encode("utf-8", "replace"), digest_size=6).digest()
    return base64.urlsafe_b64encode(digest).decode()


def _pack(digests: Iterable[str]) -> str:
    return "".join(sorted(digests))


def _unpack(packed: object) -> set[str]:
    text = packed if isinstance(packed, str) else ""
    return {text[start : start + DIGEST_LENGTH] for start in range(0, len(text), DIGEST_LENGTH)}
