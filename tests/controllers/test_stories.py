"""Golden tests of the conditions, events and counters of each kind, scenario by scenario: `golden/<kind>.yaml`.

`python -m tests.controllers.test_stories` rewrites the files; review the difference before committing it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controllers.kinds import KINDS, last, leaders, running, world_of
from tests.engine.world import World
from trainop.programs.schemes import FRAMEWORKS

GOLDEN = Path(__file__).with_name("golden")
UPSTREAM = {
    "TFJob": "training-operator pkg/controller.v1/tensorflow/tfjob_controller.go",
    "PyTorchJob": "training-operator pkg/controller.v1/pytorch/pytorchjob_controller.go",
    "MXJob": "training-operator v1.7.0 pkg/controller.v1/mxnet/mxjob_controller.go",
    "XGBoostJob": "training-operator pkg/controller.v1/xgboost/xgboostjob_controller.go",
    "PaddleJob": "training-operator pkg/controller.v1/paddlepaddle/paddlepaddle_controller.go",
    "JAXJob": "training-operator pkg/controller.v1/jax/jaxjob_controller.go",
}
"""Where the strings of a kind come from, if it is one of upstream's; those that all kinds share are in
`pkg/controller.v1/common`."""


def succeeds(kind: str) -> World:
    world = running(kind)
    for name in leaders(kind):
        world.end(name, 0)
    world.settle()
    return world


def fails(kind: str) -> World:
    world = running(kind, policy="Never")
    world.end(last(kind), 1)
    world.settle()
    return world


def restarts(kind: str) -> World:
    world = running(kind, policy="OnFailure")
    world.end(last(kind), 1)
    world.settle()
    return world


def restarts_and_runs_again(kind: str) -> World:
    world = restarts(kind)
    world.reap()
    world.settle()
    world.run()
    world.settle()
    return world


def retryable_exit_code(kind: str) -> World:
    world = running(kind, policy="ExitCode")
    world.end(last(kind), 130)
    world.settle()
    return world


def permanent_exit_code(kind: str) -> World:
    world = running(kind, policy="ExitCode")
    world.end(last(kind), 1)
    world.settle()
    return world


def suspended_from_the_start(kind: str) -> World:
    return world_of(kind, run={"suspend": True})


def suspended(kind: str) -> World:
    world = running(kind)
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    return world


def resumed(kind: str) -> World:
    world = suspended(kind)
    world.reap()
    world.spec["runPolicy"] = {"suspend": False}
    world.settle()
    world.run()
    world.settle()
    return world


def backoff_limit(kind: str) -> World:
    world = running(kind, policy="OnFailure", run={"backoffLimit": 0})
    world.end(last(kind), 1)
    world.settle()
    return world


def deadline(kind: str) -> World:
    world = running(kind, run={"activeDeadlineSeconds": 60})
    world.pass_time(60)
    world.settle()
    return world


def infra_restart_limit(kind: str) -> World:
    world = running(kind, policy="OnFailure", annotations={"trainop.kubeflow.org/infra-restart-limit": "0"})
    world.end(last(kind), 137, reason="Evicted")
    world.settle()
    return world


def no_container(kind: str) -> World:
    return world_of(kind, template={"containers": [{"name": "other", "image": "img"}]})


STORIES: list[Callable[[str], World]] = [
    succeeds,
    fails,
    restarts,
    restarts_and_runs_again,
    retryable_exit_code,
    permanent_exit_code,
    suspended_from_the_start,
    suspended,
    resumed,
    backoff_limit,
    deadline,
    infra_restart_limit,
    no_container,
]


def tell(world: World) -> dict[str, Any]:
    """The conditions as `type=status reason: message`, events as `type reason: message`, and the steps of counters."""
    conditions = world.status["conditions"]
    return {
        "conditions": [f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in conditions],
        "events": [f"{event.type} {event.reason}: {event.message}" for event in world.events],
        "counters": dict(sorted(world.counts.items())),
    }


@pytest.mark.case("job-engine-6", "bcd")
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said(kind: str, story: Callable[[str], World]):
    golden = yaml.safe_load((GOLDEN / f"{kind.lower()}.yaml").read_text())
    assert tell(story(kind)) == golden[story.__name__]


def test_there_is_no_other_story():
    for kind in KINDS:
        golden = yaml.safe_load((GOLDEN / f"{kind.lower()}.yaml").read_text())
        assert list(golden) == [story.__name__ for story in STORIES]


def write(kind: str) -> None:
    text = io.StringIO()
    text.write(f"# What is said of a {kind}, story by story (tests/controllers/test_stories.py): conditions in their\n")
    text.write("# order, events, and the steps of counters. Where the strings come from:\n")
    text.write(f"# {UPSTREAM.get(kind, 'no kind of upstream')}, and pkg/controller.v1/common.\n")
    for story in STORIES:
        yaml.safe_dump({story.__name__: tell(story(kind))}, text, sort_keys=False, width=1000)
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / f"{kind.lower()}.yaml").write_text(text.getvalue())


if __name__ == "__main__":
    for each in FRAMEWORKS:
        write(each)
