"""What happens to a training, one interruption after the other, and what it may lose each time.

The oracle is what the program prints: the step after which it was told to end, and the one from which it goes on.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from e2e.survive.examples import ENDLESS, Example, Json

T = TypeVar("T")
PREFIX = "trainop.kubeflow.org/"
TOLD, RESUMED, SAVED, STEP = (
    r"step +(\d+): told to end",
    r"resuming from checkpoint at step (\d+)",
    r"saved a checkpoint at step (\d+)",
    r"step +(\d+) loss",
)


def is_connected(process: int) -> bool:
    """Whether it has a connection to its MASTER_PORT."""
    folder = Path(f"/proc/{process}")
    try:
        (port,) = re.findall(rb"\0MASTER_PORT=(\d+)\0", b"\0" + (folder / "environ").read_bytes())
        own = {str(each.readlink()) for each in (folder / "fd").iterdir()}
        rows = [row.split() for name in ("tcp", "tcp6") for row in (folder / "net" / name).read_text().splitlines()[1:]]
    except OSError:  # a descriptor is closed, or the process has ended
        return False
    return any(row[2].endswith(f":{int(port):04X}") and row[3] == "01" and f"socket:[{row[9]}]" in own for row in rows)


class Stage(Protocol):
    """Where the training runs."""

    @property
    def example(self) -> Example: ...

    def job(self) -> Json: ...

    def patch(self, body: Json) -> None:
        """A merge patch of the job."""

    def drain(self) -> None:
        """Evicts one pod or all, and returns when they can be replaced."""

    def output(self) -> str:
        """All that the pods have printed, also those that are gone."""

    def folder(self) -> Path:
        """The checkpoints."""

    def wait(self, holds: Callable[[], T], what: str) -> T:
        """Waits until `holds` returns something true, and returns that."""

    def wait_for_success(self) -> None:
        """Waits until the job has succeeded."""


@dataclass(frozen=True)
class Told:
    """One interruption: what was wanted, and what was seen, with figures."""

    how: str
    wanted: str
    seen: str

    def __str__(self) -> str:
        return f"{self.how}: {self.seen}"


@dataclass
class Story:
    """The interruptions of one training; `told` has one entry for each."""

    stage: Stage
    told: list[Told] = field(default_factory=list)
    ended: int = 0
    """The step after which the last run that was told to end has stopped."""

    def tell(self, stall: str) -> None:
        """All interruptions. `stall`: after which time without progress the job counts as stalled."""
        self.begin()
        self.report()
        self.preempt()
        self.drain()
        self.kill()
        self.stall(stall)
        self.finish()

    def begin(self) -> None:
        self._train_on(0)

    def report(self) -> None:
        """The status of the job follows the steps."""
        first = self.stage.wait(self._reported_step, "a report")
        later = self.stage.wait(lambda: max(self._reported_step() - first, 0), "a report of a later step") + first
        metrics = self._metrics()
        assert int(float(metrics["total_steps"])) == ENDLESS, metrics
        assert "loss" in metrics, metrics
        seen = f"step {first}, then {later} of {ENDLESS}, with {', '.join(sorted(metrics))}"
        self.told.append(Told("reported", "the status of the job follows the steps", seen))

    def preempt(self) -> None:
        """As Kueue does it: suspended, and resumed later."""
        self._save("preempted", self._suspend, self._resume)

    def drain(self) -> None:
        before = self._history()
        self._save("drained", self.stage.drain, lambda: None)
        after = self._history()
        assert after.get("disruptions", 0) == before.get("disruptions", 0) + 1, (before, after)
        assert after.get("failures", 0) == before.get("failures", 0), (before, after)

    def kill(self) -> None:
        """One rank dies without a signal that could be caught: the last checkpoint is what is left."""
        before = self._history().get("failures", 0)
        self._lose("restarted", self._kill_before_rank_0_knows)
        if self.stage.example.plural != "mpijobs":  # the Job controller counts the failures of a launcher
            after = self._history().get("failures", 0)
            assert after == before + 1, (before, after)

    def stall(self, after: str) -> None:
        """One rank stops, the others wait for it for ever."""
        self._annotate(**{"stalled-after": after, "on-stall": "restart"})
        self.stage.wait(lambda: self._condition("Stalled") == "False", "the first report")
        first = self._reported()  # a restart in place may become known only now, and begins to wait for reports anew
        self.stage.wait(lambda: self._reported() != first and self._condition("Stalled") == "False", "the next report")
        failures = self._history().get("failures", 0)  # with those of the launcher, for an MPIJob

        def stop() -> None:
            os.kill(self._last_rank(), signal.SIGSTOP)
            self.stage.wait(lambda: self._history().get("failures", 0) > failures, "the restart")
            self.stage.wait(lambda: self._last_failure() == "Stalled", "its reason")

        self._lose("stalled", stop)
        self._annotate(**{"stalled-after": None, "on-stall": None})

    def finish(self) -> None:
        """Lets it go on for some steps only, to its regular end."""
        self._suspend()
        self.stage.wait(lambda: not self.stage.example.ranks(), "no process is left")
        step = max(self._all(SAVED))
        if self.stage.example.plural == "mpijobs":  # the Job of the launcher keeps its command
            path = self.stage.folder() / "checkpoint.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "step": ENDLESS - 20}))
        else:
            specs = self.stage.example.specs
            given = json.dumps(self.stage.job()["spec"][specs])
            fewer = given.replace(f"--steps={ENDLESS}", f"--steps={step + 20}")
            self.stage.patch({"spec": {specs: json.loads(fewer)}})
        self._resume()
        self.stage.wait_for_success()

    def _kill_before_rank_0_knows(self) -> None:
        """Kills the last rank. Where that restarts alone, rank 0 stands still until the new one has connected to it,
        and ends only then: it must not keep the new one."""
        alone = self.stage.example.rank and self.stage.example.plural != "mpijobs"
        first, last = self.stage.example.ranks()[0], self._last_rank()
        if not alone:
            os.kill(last, signal.SIGKILL)
            return
        os.kill(first, signal.SIGSTOP)
        try:
            os.kill(last, signal.SIGKILL)
            self.stage.wait(
                lambda: self._last_rank() != last and is_connected(self._last_rank()), "it meets its old peer"
            )
        finally:
            os.kill(first, signal.SIGCONT)

    # Interruptions ----------------------------------------------------------------------------------------------------

    # The lines of one rank may be shown later than those of another: only their steps tell which run they are of.

    def _save(self, how: str, end: Callable[[], None], resume: Callable[[], None]) -> None:
        """Every rank has time to save: nothing is lost, however the pods end."""
        known, before = self._last(STEP), self.ended
        began = time.monotonic()
        end()
        self.stage.wait(lambda: max(self._all(TOLD), default=0) > before, f"{how}: a rank is told to end")
        self.ended = told = max(self._all(TOLD))
        late = self.stage.example.late
        self.stage.wait(lambda: max(self._all(SAVED), default=-1) >= told - late, f"{how}: the checkpoint")
        kept, took = max(self._all(SAVED)), time.monotonic() - began
        resume()
        lines = self.stage.example.lines
        self.stage.wait(lambda: self._all(RESUMED).count(kept) >= lines, f"{how}: it goes on at step {kept}")
        assert {step for step in self._all(TOLD) if step > before} == {told}
        assert known <= kept <= told, (known, kept, told)
        self._train_on(told)
        seen = f"told to end, stopped after step {told}, lost {told - kept} steps; saved after {took:.1f} s"
        wanted = f"goes on from the step after which it has stopped{' but one' * late}"
        self.told.append(Told(how, wanted, seen))

    def _lose(self, how: str, end: Callable[[], None]) -> None:
        """No rank can save: what is lost is what came after the last checkpoint, and no more."""
        kept, before = max(self._all(SAVED)), self._all(RESUMED)
        lines = before.count(kept) + self.stage.example.lines
        end()
        began, known = time.monotonic(), self._last(STEP)
        self.stage.wait(lambda: self._all(RESUMED).count(kept) >= lines, f"{how}: it goes on at step {kept}")
        assert set(self._all(RESUMED)) == set(before)
        self._train_on(kept)
        seen = f"went on from step {kept}, the last checkpoint, after about {known - kept} more"
        seen += f"; made steps again after {time.monotonic() - began:.1f} s"
        self.told.append(Told(how, "goes on from the last checkpoint", seen))

    def _train_on(self, step: int) -> None:
        """All ranks make steps after this one."""
        count = len(self._all(STEP))
        self.stage.wait(lambda: len(self._all(STEP)) > count and self._last(STEP) > step, f"steps after {step}")
        self.stage.wait(lambda: self._condition("Running") == "True", "it runs")

    # The job ----------------------------------------------------------------------------------------------------------

    def _suspend(self) -> None:
        self.stage.patch({"spec": {"runPolicy": {"suspend": True}}})

    def _resume(self) -> None:
        self.stage.wait(lambda: not self.stage.example.ranks(), "no process is left")
        self.stage.patch({"spec": {"runPolicy": {"suspend": False}}})

    def _annotate(self, **annotations: str | None) -> None:
        named = {f"{PREFIX}{name}": value for name, value in annotations.items()}
        self.stage.patch({"metadata": {"annotations": named}})

    def _history(self) -> Json:
        found: Json = json.loads(self.stage.job()["metadata"]["annotations"].get(f"{PREFIX}restarts", "{}"))
        return found

    def _trainer_status(self) -> Json:
        return (self.stage.job().get("status") or {}).get("trainerStatus") or {}

    def _reported(self) -> str:
        return str(self._trainer_status().get("lastUpdatedTime"))

    def _metrics(self) -> dict[str, str]:
        """Of the last report."""
        return {each["name"]: each["value"] for each in self._trainer_status().get("metrics") or ()}

    def _reported_step(self) -> int:
        return int(float(self._metrics().get("current_step", 0)))

    def _last_failure(self) -> str:
        return str((self.stage.job()["status"].get("lastFailure") or {}).get("reason"))

    def _condition(self, type_: str) -> str:
        conditions = (self.stage.job().get("status") or {}).get("conditions") or ()
        return next((str(one["status"]) for one in conditions if one["type"] == type_), "")

    def _last_rank(self) -> int:
        """Its process."""
        rank = self.stage.example.rank
        return self.stage.wait(lambda: self.stage.example.ranks().get(rank, 0), f"the process of rank {rank}")

    def _all(self, pattern: str) -> list[int]:
        return [int(each) for each in re.findall(pattern, self.stage.output())]

    def _last(self, pattern: str) -> int:
        return (self._all(pattern) or [0])[-1]
