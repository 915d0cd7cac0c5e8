"""What the time of each job was spent on (docs/survive.md), judged by what is stored."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tests.simulation.oracle.kinds import Json

PARTS = ("queuedSeconds", "startingSeconds", "trainingSeconds", "restartingSeconds")
ENDS = ("Succeeded", "Failed")
_JOBS = re.compile(r"\w+jobs\.(kubeflow\.org|diengine\.opendilab\.org)")


class Accounts:
    """Listens to the store. `flag` gets a broken rule and a text; `exact`: no clock is set while the operator runs."""

    def __init__(self, flag: Callable[[str, str], None], *, exact: bool) -> None:
        self._flag = flag
        self._exact = exact
        self._restarting: dict[str, float] = defaultdict(float)
        """By UID: the seconds between Restarting and what came after it, by the times in the statuses."""
        self._interrupted: set[str] = set()
        """UIDs of jobs that were restarted or suspended."""

    def __call__(self, table: Any, change: Any) -> None:
        if change.old is None or change.new is None or not _JOBS.fullmatch(table.name):
            return
        if change.old.uid == change.new.uid:
            self._follow(change.new.uid, change.old.value, change.new.value)

    def _follow(self, uid: str, old: Json, new: Json) -> None:
        ended = any(_since(new, type_) for type_ in ENDS) and not any(_since(old, type_) for type_ in ENDS)
        if began := _since(old, "Restarting"):
            following = [_since(new, type_) for type_ in ("Running", "Suspended", *ENDS)]
            after = [at for at in following if at is not None and at >= began]
            if after and not _since(new, "Restarting"):
                self._restarting[uid] += (min(after) - began).total_seconds()
        if _since(new, "Restarting") or _since(new, "Suspended"):
            self._interrupted.add(uid)
        if ended:
            self._judge(uid, old, new)

    def _judge(self, uid: str, old: Json, job: Json) -> None:
        name, status = job["metadata"]["name"], job["status"]
        account = status.get("account")
        if account is None:
            self._flag("account", f"{name} has ended without an account")
            return
        total, lost = sum(account[part] for part in PARTS), account["lostSeconds"]
        life = (
            datetime.fromisoformat(account["until"]) - datetime.fromisoformat(job["metadata"]["creationTimestamp"])
        ).total_seconds()
        if total != life:
            self._flag("account", f"the parts of {name} are {total} s, and it has lived for {life} s")
        if not 0 <= lost <= account["trainingSeconds"]:
            self._flag("account", f"{name} has lost {lost} s of {account['trainingSeconds']} s")
        if total and account["goodputPercent"] != 100 * (account["trainingSeconds"] - lost) // total:
            self._flag("account", f"{name} has a goodput of {account['goodputPercent']} %: {account}")
        if uid not in self._interrupted and lost and _since(job, "Succeeded"):
            self._flag("account", f"{name} has lost {lost} s, and nothing has interrupted it")
        if self._exact:
            self._judge_times(uid, old, job, account)

    def _judge_times(self, uid: str, old: Json, job: Json, account: Json) -> None:
        name, end = job["metadata"]["name"], job["status"].get("completionTime")
        # what a status has shown an account does not take back, also if the end of the job is learned later
        if end is not None and account["until"] != max(end, _latest(old, end)):
            self._flag("account", f"that of {name} ends at {account['until']}, and the job at {end}")
        if account["restartingSeconds"] != self._restarting[uid]:
            told = f"{account['restartingSeconds']} s, and was {self._restarting[uid]} s"
            self._flag("account", f"{name} says that it was restarting for {told}")


def _latest(job: Json, otherwise: str) -> str:
    """The latest time that the status shows a job to have entered a phase."""
    status = job.get("status") or {}
    return max([each["lastTransitionTime"] for each in status.get("conditions") or ()], default=otherwise)


def _since(job: Json, type_: str) -> datetime | None:
    """Since when a condition is true."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["type"] == type_ and condition["status"] == "True":
            return datetime.fromisoformat(condition["lastTransitionTime"])
    return None
