"""When a checkpoint was first heard of: the endpoint adds it to each report that names the step of the checkpoint."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.engine.builders import NOW
from trainop.controllers.progress.payload import MAX_METRICS, TrainerStatus, read_report
from trainop.engine.progress import find_metric, read_checkpoint_time
from trainop.runtime.lowlevel import timestamp


def report(**metrics: object) -> TrainerStatus:
    listed = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    found = read_report(json.dumps({"trainerStatus": {"metrics": listed}}).encode())
    assert found is not None
    return found


def time_of(status: TrainerStatus) -> datetime | None:
    return read_checkpoint_time({"trainerStatus": status.as_json()})


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_a_checkpoint_is_as_old_as_the_first_report_of_it():
    first = report(current_step=120, checkpoint_step=100).date_checkpoint(NOW, (None, None))
    assert time_of(first) == NOW
    second = report(current_step=150, checkpoint_step=100).date_checkpoint(later(60), (first.as_json(), None))
    assert time_of(second) == NOW
    third = report(current_step=210, checkpoint_step=200).date_checkpoint(later(90), (second.as_json(), None))
    assert time_of(third) == later(90)
    assert find_metric(third.as_json(), "current_step") == "210"


def test_a_replica_that_has_heard_nothing_goes_by_the_status():
    shown = report(checkpoint_step=100).date_checkpoint(NOW, ()).as_json()
    assert time_of(report(checkpoint_step=100).date_checkpoint(later(300), (None, shown))) == NOW


def test_the_earliest_time_counts_and_never_one_of_the_future():
    one, other = ({**report(checkpoint_step=1).date_checkpoint(later(at), ()).as_json()} for at in (50, 20))
    assert time_of(report(checkpoint_step=1).date_checkpoint(later(90), (one, other))) == later(20)
    assert time_of(report(checkpoint_step=1).date_checkpoint(NOW, (one, other))) == NOW


def test_what_the_client_says_about_it_does_not_count():
    given = report(checkpoint_step=5, checkpoint_time=timestamp(later(-9999))).date_checkpoint(NOW, ())
    assert time_of(given) == NOW
    assert [each.name for each in given.metrics or ()] == ["checkpoint_step", "checkpoint_time"]


@pytest.mark.parametrize("metrics", [{}, {"loss": 1}, {"checkpoint_time": "2026-01-01T00:00:00Z"}])
def test_a_report_without_a_checkpoint_stays_as_it_is(metrics: dict[str, Any]):
    told = report(**metrics)
    assert told.date_checkpoint(NOW, ()) is told
    assert time_of(told) is None


def test_the_limit_of_metrics_holds():
    many = {f"m{index}": index for index in range(MAX_METRICS - 1)}
    full = report(checkpoint_step=1, **many)
    assert full.date_checkpoint(NOW, ()) is full
    assert len(report(checkpoint_step=1, **dict(list(many.items())[1:])).date_checkpoint(NOW, ()).metrics or ()) == 256


@pytest.mark.parametrize("known", [3, {}, {"metrics": 3}, {"metrics": [{"name": "checkpoint_step", "value": "1"}]}])
def test_known_statuses_of_any_shape(known: Any):
    assert time_of(report(checkpoint_step=1).date_checkpoint(NOW, (known,))) == NOW
