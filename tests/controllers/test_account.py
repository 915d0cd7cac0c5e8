"""The account of a job's time: its parts are the life of the job, for every kind and whatever happens to it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controllers.kinds import KINDS, last, leaders, make
from tests.controllers.shell import pytorch_job
from tests.controllers.test_phases import (
    CREATED,
    EMPTY,
    JSON,
    RESTARTING,
    RESUMED,
    RUNNING,
    STARTED,
    SUCCEEDED,
    SUSPENDED,
    cond,
    run_pods,
    succeed,
)
from tests.controllers.test_shell_operator import QUIET, running, stage
from tests.controllers.worlds import OPTIONS, WORLDS, decide, settle, start
from tests.engine.builders import NOW, make_job, see, stamp
from tests.engine.world import World
from tests.kinds.dijob_world import DiWorld
from tests.kinds.mpi_world import MpiWorld
from tests.runtime.virtual_time import virtual_time
from trainop.controllers.counters import JobMetrics
from trainop.engine.kind import kind_of
from trainop.engine.phases import Account, add_account, read_account, read_final_account
from trainop.engine.restart_history import RESTARTS
from trainop.kinds.pytorch import PYTORCH
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json

PARTS = ("queuedSeconds", "startingSeconds", "trainingSeconds", "restartingSeconds")


def reported(saved: float | None, step: object = "120") -> Json:
    """What the endpoint has written about the last checkpoint."""
    metrics = [{"name": "checkpoint_step", "value": step}]
    metrics += [{"name": "checkpoint_time", "value": stamp(saved)}] if saved is not None else []
    return {"trainerStatus": {"metrics": metrics}}


def keep(before: Json, after: Json) -> Json:
    """The account in `after`; `before` is left as it is."""
    found: Json = add_account(before, after, NOW).get("account", {})
    return found


def spent(account: Json) -> tuple[int, ...]:
    return tuple(account[part] for part in PARTS)


def story(*statuses: Json, saved: tuple[float | None, ...] = ()) -> Json:
    """The account after these statuses were written one after the other; `saved` are the checkpoints reported before
    each of them."""
    stored: Json = {}
    for index, status in enumerate(statuses):
        told = reported(saved[index]) if saved and saved[index] is not None else {}
        kept = {"account": stored["account"]} if "account" in stored else {}
        stored = add_account(stored, {**status, **kept, **told}, NOW)
    return stored.get("account") or {}


# What is kept, and when -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [{"conditions": [CREATED]}, STARTED, RUNNING])
def test_a_job_that_was_never_interrupted_has_none_before_its_end(status: Json):
    assert keep(EMPTY, status) == {}
    assert keep(STARTED, status) == {}


def test_what_a_job_without_interruptions_was_about():
    assert story({"conditions": [CREATED]}, RUNNING, SUCCEEDED) == {
        "queuedSeconds": 3,
        "startingSeconds": 7,
        "trainingSeconds": 60,
        "restartingSeconds": 0,
        "lostSeconds": 0,
        "goodputPercent": 85,
        "until": stamp(70),
    }
    assert keep(EMPTY, SUCCEEDED) == keep(RUNNING, SUCCEEDED)


def test_it_is_kept_with_what_the_status_forgets():
    assert spent(keep(RUNNING, RESTARTING)) == (3, 7, 50, 0)
    assert spent(keep(RUNNING, SUSPENDED)) == (3, 7, 20, 0)
    assert spent(keep(EMPTY, {"conditions": [CREATED, cond("Suspended", 1)]})) == (1, 0, 0, 0)
    again = RUNNING | {"conditions": [CREATED, cond("Running", 80)]}
    end = SUCCEEDED | {"conditions": [CREATED, cond("Running", 80, "False"), cond("Succeeded", 90)]}
    whole = story(RUNNING, RESTARTING, again, end | {"completionTime": stamp(90)})
    assert (spent(whole), whole["until"]) == ((3, 7, 60, 20), stamp(90))


def test_a_suspension_is_a_part_of_the_queue():
    end = RESUMED | {"conditions": [*RESUMED["conditions"][:1], cond("Suspended", 90, "False"), cond("Failed", 120)]}
    whole = story(RUNNING, SUSPENDED, RESUMED, RESUMED | {"startTime": stamp(95)}, end | {"startTime": stamp(95)})
    assert spent(whole) == (3 + 60 + 5, 7 + 25, 20, 0)


def test_an_end_that_is_learned_late_is_the_end():
    """The job succeeded at 70, and had been suspended and resumed before the operator heard of it."""
    end = SUCCEEDED | {"startTime": stamp(95)}
    end["conditions"] = [CREATED, cond("Suspended", 80), cond("Running", 80, "False"), cond("Succeeded", 100)]
    whole = story(RUNNING, end)
    assert (spent(whole), whole["until"], whole["lostSeconds"]) == ((3, 7, 60, 0), stamp(70), 0)
    stored = story(RUNNING, SUSPENDED | {"conditions": end["conditions"][:3]}, end)
    assert (spent(stored), stored["until"]) == ((3, 7, 70, 0), stamp(80)), "what it has said it does not take back"


def test_a_status_that_shows_no_new_phase_leaves_it_as_it_is():
    stored = RESTARTING | {"account": keep(RUNNING, RESTARTING)}
    after = stored | {"replicaStatuses": {"Worker": {"active": 1}}}
    assert add_account(stored, after, NOW) is after
    done = add_account(RUNNING, SUCCEEDED, NOW)
    later = done | {"replicaStatuses": {}}
    assert add_account(done, later, NOW) is later


def test_a_job_without_the_time_of_its_creation_has_none():
    assert add_account(RUNNING, SUCCEEDED, None) is SUCCEEDED


def test_a_job_that_ended_in_the_second_of_its_creation_has_no_goodput():
    found = keep(EMPTY, {"conditions": [cond("Failed", 0)], "completionTime": stamp(0)})
    assert spent(found) == (0, 0, 0, 0)
    assert "goodputPercent" not in found


def test_clocks_that_are_set_back_take_nothing_away():
    back = RESTARTING | {"conditions": [CREATED, cond("Restarting", 2)]}
    found = keep(RUNNING, back)
    assert (spent(found), found["until"]) == ((3, 7, 0, 0), stamp(10))


# What is lost ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved", "lost", "since"),
    [
        (None, 50, "Attempt"),
        (40, 20, "Checkpoint"),
        (60, None, None),
        (65, None, None),
        (5, 50, "Checkpoint"),
    ],
    ids=["none reported", "in this run", "in the last second", "after SIGTERM, already reported", "in an earlier run"],
)
def test_training_is_lost_since_the_last_checkpoint(saved: float | None, lost: int | None, since: str | None):
    found = keep(RUNNING, RESTARTING | (reported(saved) if saved is not None else {}))
    assert (found["lostSeconds"], found.get("lostSince"), found.get("lastLostSeconds")) == (lost or 0, since, lost)
    assert found["goodputPercent"] == int(100 * (50 - (lost or 0)) / 60)


@pytest.mark.parametrize("metrics", [None, 3, [3, {}], [{"name": "checkpoint_time", "value": stamp(40)}]])
def test_a_report_without_a_checkpoint_is_none(metrics: Any):
    assert keep(RUNNING, RESTARTING | {"trainerStatus": {"metrics": metrics}})["lostSince"] == "Attempt"


@pytest.mark.parametrize("value", [None, 7, "soon", ""])
def test_a_time_that_cannot_be_read_is_none(value: Any):
    metrics = [{"name": "checkpoint_step", "value": "1"}, {"name": "checkpoint_time", "value": value}]
    assert keep(RUNNING, RESTARTING | {"trainerStatus": {"metrics": metrics}})["lostSince"] == "Attempt"


def test_nothing_of_the_run_that_succeeded_is_lost():
    again = RUNNING | {"conditions": [CREATED, cond("Running", 80)]}
    end = {"conditions": [CREATED, cond("Running", 80, "False"), cond("Succeeded", 180)], "startTime": stamp(3)}
    found = story(RUNNING, RESTARTING, again, end, saved=(30, 30, 30, 30))
    assert (spent(found), found["lostSeconds"], found["lastLostSeconds"]) == ((3, 7, 150, 20), 30, 30)
    assert found["goodputPercent"] == int(100 * 120 / 180)


def test_a_failure_loses_what_a_restart_would():
    end = {"conditions": [CREATED, cond("Running", 10, "False"), cond("Failed", 70)], "startTime": stamp(3)}
    assert keep(RUNNING, end | reported(50))["lostSeconds"] == 20


def test_what_is_saved_after_sigterm_is_not_lost():
    """The report of it comes while the job restarts, or is suspended."""
    again = RUNNING | {"conditions": [CREATED, cond("Running", 80)]}
    found = story(RUNNING, RESTARTING, again, saved=(30, 30, 62))
    assert (found["lostSeconds"], found["lastLostSeconds"]) == (0, 0)
    assert story(RUNNING, RESTARTING, again, saved=(30, 30, 50))["lostSeconds"] == 10  # reported late
    assert story(RUNNING, RESTARTING, again, saved=(None, None, None))["lostSeconds"] == 50
    assert story(RUNNING, SUSPENDED, RESUMED, saved=(None, 25, 31))["lostSeconds"] == 0
    later = RUNNING | {"conditions": [CREATED, cond("Restarting", 120)]}
    assert story(RUNNING, RESTARTING, again, later, saved=(30, 30, 30, 110))["lostSeconds"] == 30 + 10


def test_one_run_without_a_report_makes_the_whole_loss_an_upper_bound():
    again = RUNNING | {"conditions": [CREATED, cond("Running", 80)]}
    later = RUNNING | {"conditions": [CREATED, cond("Restarting", 120)]}
    assert story(RUNNING, RESTARTING, again, later, saved=(None, None, None, 110))["lostSince"] == "Attempt"
    assert story(RUNNING, RESTARTING, again, later, saved=(30, 30, 30, None))["lostSince"] == "Attempt"


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [None, 3, [], {}, {"until": 3}, {"until": "soon", "trainingSeconds": 5}])
def test_an_account_that_cannot_be_read_is_none(raw: Any):
    assert read_account(raw) is None
    assert spent(keep(RUNNING | {"account": raw}, SUCCEEDED | {"account": raw})) == (3, 7, 60, 0)


@pytest.mark.parametrize("value", [-1, 2**70, True, "5", None, 1.5])
def test_numbers_that_mean_nothing_count_as_0(value: Any):
    names = [*PARTS, "lostSeconds", "lastLostSeconds"]
    found = read_account({"until": stamp(), **dict.fromkeys(names, value), "lostSince": 3})
    assert found == Account(NOW)


def test_more_than_all_cannot_be_lost():
    found = read_account({"until": stamp(), "trainingSeconds": 5, "lostSeconds": 9, "lastLostSeconds": 7})
    assert found == Account(NOW, training=5, lost=5, last_lost=5)


STATUSES = st.lists(
    st.sampled_from([STARTED, RUNNING, RESTARTING, SUSPENDED, RESUMED, SUCCEEDED, {"conditions": [CREATED]}]),
    max_size=8,
)


@given(STATUSES, st.integers(-100, 200))
def test_the_parts_are_the_time_that_has_passed(statuses: list[Json], saved: int):
    found = story(*statuses, saved=tuple([saved] * len(statuses)))
    if found:
        until = read_account(found)
        assert until is not None
        assert timedelta(seconds=sum(spent(found))) == until.until - NOW
        assert 0 <= found["lostSeconds"] <= found["trainingSeconds"]
        assert 0 <= found.get("goodputPercent", 0) <= 100


@given(JSON, JSON.filter(lambda value: isinstance(value, dict)), JSON, JSON)
def test_statuses_of_any_shape_are_read(before: Any, after: Any, account: Any, told: Any):
    made = add_account(before, {**after, "account": account, "trainerStatus": {"metrics": told}}, NOW)
    assert isinstance(made, dict)
    read_final_account(before, made, {})


# Every kind -----------------------------------------------------------------------------------------------------------


def begin(kind: str, **annotations: str) -> World:
    world = WORLDS[kind](**annotations)
    world.raw["metadata"]["creationTimestamp"] = stamp()
    return world


def finish(world: World, kind: str) -> None:
    if isinstance(world, MpiWorld) and world.kind.launcher is not None:
        world.end_launcher()
    elif isinstance(world, DiWorld):
        world.end("a-coordinator", 0)
    else:
        for name in leaders(kind) if kind in KINDS else ["foo-launcher"]:
            world.end(name, 0)
    settle(world)
    assert world.is_true("Succeeded")


@pytest.mark.parametrize("kind", WORLDS)
def test_the_parts_are_the_life_of_a_job(kind: str):
    world = begin(kind)
    world.pass_time(9)
    start(world)
    assert "account" not in world.status
    world.pass_time(100)
    finish(world, kind)
    account = world.status["account"]
    assert sum(spent(account)) == 109
    assert (account["trainingSeconds"], account["lostSeconds"]) == (100, 0)
    assert account["goodputPercent"] == 91
    settle(world)
    assert world.status["account"] == account


@pytest.mark.parametrize("kind", WORLDS)
def test_with_crds_that_drop_the_field_nothing_is_written_again(kind: str):
    world = begin(kind)
    start(world)
    world.pass_time(100)
    finish(world, kind)
    del world.status["account"]
    assert decide(world).status is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_of_which_all_sorts_of_things_have_become(kind: str):
    job = make(kind, policy="OnFailure", run={"suspend": True})
    job["metadata"]["creationTimestamp"] = stamp()
    world = World(job, framework=FRAMEWORKS[kind], options=OPTIONS)
    settle(world)
    world.pass_time(10)
    world.spec["runPolicy"]["suspend"] = False
    settle(world)
    world.pass_time(5)
    start(world)
    world.pass_time(100)
    world.status["trainerStatus"] = reported((world.now - NOW).total_seconds() - 30)["trainerStatus"]
    world.end(last(kind), 1)
    settle(world)
    world.pass_time(2)
    world.reap()
    settle(world)
    world.pass_time(4)
    start(world)
    world.pass_time(200)
    finish(world, kind)
    account = world.status["account"]
    assert sum(spent(account)) == (world.now - NOW).total_seconds() == 321
    assert account["queuedSeconds"] == 10
    assert account["startingSeconds"] == 5
    assert (account["trainingSeconds"] + account["restartingSeconds"], account["lostSeconds"]) == (306, 30)


def test_a_job_that_the_api_server_refuses_has_one():
    job = make_job()
    job["metadata"]["creationTimestamp"] = stamp(-5)
    made = kind_of(PYTORCH).refuse(see(job), "no")
    assert made.status is not None
    assert spent(made.status["account"]) == (5, 0, 0, 0)


def test_an_operator_that_starts_anew_goes_on_with_the_account():
    """All that it needs is in the status: no plan gets anything else."""
    world = begin("PyTorchJob")
    start(world)
    world.pass_time(50)
    world.end("j-worker-1", 1)
    settle(world)
    kept = world.status["account"]
    assert spent(kept) == (0, 0, 50, 0)
    world.reap()
    world.pass_time(10)
    settle(world)
    start(world)
    world.pass_time(40)
    finish(world, "PyTorchJob")
    assert spent(world.status["account"]) == (0, 0, 90, 10)


# The histograms -------------------------------------------------------------------------------------------------------


def observed(metrics: JobMetrics) -> dict[str, float]:
    """Part -> the sum of what was observed, for PyTorchJobs."""
    names = [*(part.removesuffix("Seconds") for part in PARTS), "lost"]
    labels = {name: {"part": name, "kind": "PyTorchJob"} for name in names}
    read = metrics.registry.get_sample_value
    return {name: read("trainop_job_account_seconds_sum", labels[name]) or 0.0 for name in names}


def count(metrics: JobMetrics) -> float | None:
    return metrics.registry.get_sample_value("trainop_job_goodput_ratio_count", {"kind": "PyTorchJob"})


@virtual_time
async def test_each_job_that_ends_is_counted_once():
    async with stage(run=False) as here:
        metrics = JobMetrics()
        async with running(here.operator(QUIET, metrics)):
            await here.submit(pytorch_job())
            await asyncio.sleep(10)
            assert count(metrics) == 0
            await run_pods(here)
            await asyncio.sleep(57)
            await succeed(here)
            await asyncio.sleep(600)
            assert count(metrics) == 1
        stored = (await here.client.get(PYTORCH.resource, "j", "ns"))["status"]["account"]
        assert observed(metrics) == {
            "queued": stored["queuedSeconds"],
            "starting": stored["startingSeconds"],
            "training": stored["trainingSeconds"],
            "restarting": 0,
            "lost": 0,
        }
        assert stored["trainingSeconds"] == pytest.approx(60, abs=2)


@pytest.mark.parametrize(
    ("before", "annotations", "counted"),
    [
        (RUNNING, {}, True),
        (RUNNING, {RESTARTS: "{}"}, False),
        (RESTARTING, {}, False),
        (RESUMED, {}, False),
        (RESTARTING | {"account": {"until": stamp(60)}}, {RESTARTS: "{}"}, True),
        (SUCCEEDED, {}, False),
        (None, {}, True),
    ],
    ids=["plain", "restarted", "restarting", "resumed", "restarted, and stored", "ended before", "new"],
)
def test_only_accounts_without_gaps_are_counted(before: Any, annotations: dict[str, str], counted: bool):
    after = SUCCEEDED | {"account": {"until": stamp(70)}}
    assert (read_final_account(before, after, annotations) is not None) is counted
    assert read_final_account(before, RUNNING, annotations) is None
