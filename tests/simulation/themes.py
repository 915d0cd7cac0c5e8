"""Themes of seeds. Many kinds of faults at once mask each other's effects, and certain combinations would hardly ever
be drawn, so the theme of a seed sets which faults are frequent."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.simulation.script import BACKOFF, DEADLINE, FAIL, FOREIGN, RUN, SUCCEED, Step

Weights = dict[str, int]

GOALS: Weights = {SUCCEED: 6, FAIL: 2, BACKOFF: 3, DEADLINE: 2, RUN: 4, FOREIGN: 2}
DEEDS: Weights = {"suspend": 1, "resume": 1, "pause": 1, "scale": 2, "annotate": 1, "recreate": 2, "delete": 1}
OPERATOR = ("kill", "stop", "freeze", "lag", "lag", "jump")
SERVER = ("cut", "compact", "outage", "no quorum", "no admission")
LOSSES = ("evict", "preempt", "delete pod", "vanish", "vanish", "vanish unseen", "node")
REQUESTS = ("slow", "refused", "reset", "lost", "hang", "throttled", "broken", "conflict")
WATCHES = ("late", "cut", "mute", "twice", "expired", "error", "bookmark")


class Scene(enum.Enum):
    """A combination of related faults."""

    NONE = "nothing"
    SLEEPER = "the leader stands still right after it has sent a write, and wakes when another leads"
    REFUSAL = "for a while reads are answered and all writes fail, or all new pods and services"
    CONTENTION = "the operator often comes too late with what it writes of a job"
    SUCCESSOR = "a job is deleted and another takes its name while the watch of jobs lags"
    PAUSE = "a job is suspended and resumed before its pods have gone"
    FORGOTTEN = "what was deleted while no watch stood is in no history"


@dataclass(frozen=True)
class Theme:
    """Weights and choices for the random script."""

    name: str
    goals: Weights = field(default_factory=lambda: GOALS)
    deeds: Weights = field(default_factory=lambda: DEEDS | {"edit": 1})
    """What users do to their jobs."""
    most_deeds: int = 4
    plain: float = 0.1
    """How many jobs run smoothly but for faults: what goes wrong unseen is not made good by the next thing that
    happens."""
    orderly: float = 0.3
    fault_rates: tuple[str, ...] = REQUESTS + WATCHES
    sure: tuple[str, ...] = ()
    """What of it there always is."""
    kinds: tuple[int, ...] = (0, 1, 3, 4, 5, 8)
    """How many kinds of faults are drawn."""
    acts: tuple[str, ...] = OPERATOR + SERVER
    most_acts: int = 4
    losses: tuple[str, ...] = LOSSES
    most_losses: int = 3
    lasts: tuple[float, float] = (8, 40)
    """Seconds until all is well, or from when pods may end."""
    pair: float = 0.4
    """How often there are two replicas."""
    intruders: float = 0.15
    """How often somebody lays hands on pods, unless the script is orderly."""
    denials: float = 0.0
    """How often an admission policy refuses pods for a while, unless the script is orderly."""
    lingering: float = 0.0
    """How often pods that run go on when their job has finished, unless the script is orderly."""
    scene: Scene | None = None
    """None if it is drawn, too."""


ANYTHING = Theme("anything")

THEMES: tuple[Theme, ...] = (
    ANYTHING,
    Theme(
        "pods",
        goals=GOALS | {RUN: 8},
        deeds=DEEDS | {"pause": 6, "suspend": 0},
        fault_rates=WATCHES,
        kinds=(0, 0, 1, 2),
        most_acts=1,
        most_losses=4,
        most_deeds=3,
        plain=0.4,
        orderly=0.25,
        pair=0.2,
        scene=Scene.PAUSE,
    ),
    Theme(
        "replicas",
        goals={SUCCEED: 3, FAIL: 1, BACKOFF: 1, RUN: 8},
        kinds=(0, 0, 0, 1, 2),
        acts=("kill", "stop", "freeze", "freeze", "outage", "no quorum"),
        most_acts=1,
        most_losses=1,
        lasts=(30, 45),
        orderly=0.15,
        pair=1.0,
        scene=Scene.SLEEPER,
    ),
    Theme(
        "refusals",
        goals={SUCCEED: 3, FAIL: 1, BACKOFF: 1, DEADLINE: 1, RUN: 14},
        deeds=DEEDS | {"scale": 4},
        fault_rates=REQUESTS,
        kinds=(0, 0, 1, 2),
        acts=("kill", "outage"),
        most_acts=1,
        most_losses=1,
        pair=0.1,
        most_deeds=2,
        plain=0.7,
        orderly=0.15,
        denials=0.3,
        scene=Scene.REFUSAL,
    ),
    Theme(
        "conflicts",
        goals={SUCCEED: 3, FAIL: 1, BACKOFF: 1, DEADLINE: 1, RUN: 14},
        deeds=DEEDS | {"annotate": 4, "scale": 4},
        fault_rates=REQUESTS,
        sure=("conflict",),
        most_deeds=3,
        plain=0.6,
        orderly=0.15,
        scene=Scene.CONTENTION,
        kinds=(0, 0, 1, 2),
        acts=("kill", "outage"),
        most_acts=1,
        most_losses=1,
        pair=0.1,
    ),
    Theme(
        "users",
        goals=GOALS | {FOREIGN: 8, DEADLINE: 5, RUN: 10},
        deeds=DEEDS | {"pause": 3, "recreate": 6},
        fault_rates=WATCHES,
        kinds=(0, 0, 1, 2),
        acts=("lag", "lag", "stop"),
        most_acts=1,
        most_losses=1,
        orderly=0.15,
        lasts=(15, 35),
        pair=0.1,
        scene=Scene.SUCCESSOR,
    ),
    Theme(
        "watches",
        goals={SUCCEED: 3, BACKOFF: 1, RUN: 12},
        deeds={"annotate": 1, "scale": 2, "pause": 1, "recreate": 1},
        fault_rates=WATCHES,
        kinds=(0, 0, 0, 1, 3),
        acts=("lag", "cut", "compact"),
        most_acts=2,
        most_losses=2,
        pair=0.1,
        most_deeds=2,
        plain=0.8,
        orderly=0.1,
        scene=Scene.FORGOTTEN,
    ),
    Theme(
        "fair",
        goals={SUCCEED: 8, FAIL: 2, BACKOFF: 3, DEADLINE: 1, RUN: 4},
        deeds=DEEDS | {"scale": 4, "delete": 0, "edit": 2},
        fault_rates=(),
        kinds=(0,),
        acts=(),
        most_acts=0,
        losses=tuple(loss for loss in LOSSES if loss != "vanish unseen"),
        most_deeds=3,
        orderly=0.1,
        lasts=(25, 40),
        pair=0.1,
        intruders=0.5,
        denials=0.5,
        lingering=0.5,
        scene=Scene.NONE,
    ),
)


def theme_of(seed: int) -> Theme:
    """The theme of a seed: themes alternate, so that any few consecutive seeds contain all of them."""
    return THEMES[seed % len(THEMES)]


# Scenes ---------------------------------------------------------------------------------------------------------------


def _nothing(*_: object) -> Iterator[Step]:
    return iter(())


def _sleeper(rng: random.Random, steps: Sequence[Step], _until: float, _replicas: int, lease: float) -> Iterator[Step]:
    busy = [step.at for step in steps if step.act in {"create", "resume", "scale"}]
    for at in rng.sample(busy, min(len(busy), rng.randint(1, 2))):
        yield Step(max(0.0, at - 0.05), "freeze", "leader", (lease * rng.uniform(1.2, 1.5), True))


def _refusal(rng: random.Random, steps: Sequence[Step], until: float, _replicas: int, _lease: float) -> Iterator[Step]:
    busy = [step.at for step in steps if step.act in {"create", "resume", "scale"}]
    for _ in range(rng.randint(1, 2)):
        at = rng.choice((rng.uniform(0, until), *busy, busy[-1], busy[-1])) - rng.uniform(-0.1, 0.5)
        act = rng.choice(("no quorum", "no admission", "no admission"))
        yield Step(max(0.0, at), act, "", rng.uniform(0.5, 8))


def _successor(
    rng: random.Random, steps: Sequence[Step], _until: float, replicas: int, _lease: float
) -> Iterator[Step]:
    """The first time so that the operator's own first write does not show, and it reads the job itself."""
    first = min(step.at for step in steps)
    begins = [first + rng.uniform(0.03, 0.4)]
    begins += [max(0.0, step.at - rng.uniform(0.05, 3)) for step in steps if step.act == "delete"]
    for begin in begins:
        for number in range(replicas):
            yield Step(begin, "lag", f"op{number + 1}", ("jobs", rng.uniform(8, 25)))


def _forgotten(
    rng: random.Random, steps: Sequence[Step], until: float, _replicas: int, _lease: float
) -> Iterator[Step]:
    for _ in range(rng.randint(1, 3)):
        yield Step(until * rng.uniform(0.5, 1), "vanish unseen")
    for at in (step.at for step in steps if step.act == "delete"):
        if rng.random() < 0.5:
            yield Step(at + 0.001, "compact")


Staged = Callable[[random.Random, Sequence[Step], float, int, float], Iterator[Step]]
"""Of what users do, the time when faults end, the number of replicas and the duration of the lease."""

SCENES: Mapping[Scene, Staged] = {
    Scene.NONE: _nothing,
    Scene.CONTENTION: _nothing,
    Scene.PAUSE: _nothing,
    Scene.SLEEPER: _sleeper,
    Scene.REFUSAL: _refusal,
    Scene.SUCCESSOR: _successor,
    Scene.FORGOTTEN: _forgotten,
}

ENCORES: Mapping[Scene, tuple[Step, ...]] = {
    Scene.SLEEPER: (Step(0.0, "freeze", "leader", (28.0, True)), Step(0.1, "evict")),
    Scene.REFUSAL: (Step(0.0, "no admission", "", 6.0), Step(0.5, "delete pod")),
    Scene.CONTENTION: (Step(0.0, "contention"), Step(0.5, "evict")),
    Scene.SUCCESSOR: (
        *(Step(0.0, "lag", name, ("jobs", 20.0)) for name in ("op1", "op2")),
        Step(0.1, "evict"),
        Step(2.0, "delete", "", "Background"),
        Step(2.5, "create"),
    ),
    Scene.PAUSE: (Step(0.0, "suspend"), Step(0.3, "resume")),
    Scene.FORGOTTEN: (Step(0.0, "vanish unseen"),),
}
"""The same once more where nothing else happens."""
