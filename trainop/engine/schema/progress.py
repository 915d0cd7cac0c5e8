"""The schema of `status.trainerStatus`, which all kinds of jobs have, and its columns."""

from __future__ import annotations

from trainop.engine.schema.openapi import fields, int32, items, moment, text
from trainop.runtime import Json

PROGRESS_COLUMNS: tuple[Json, ...] = (
    {
        "name": "Progress %",
        "type": "integer",
        "jsonPath": ".status.trainerStatus.progressPercentage",
        "priority": 1,
    },
    {"name": "ETA", "type": "integer", "jsonPath": ".status.trainerStatus.estimatedRemainingSeconds", "priority": 1},
)
"""Columns of `kubectl get -o wide`: priority 1, because programs read the columns of plain `kubectl get`."""


def trainer_status() -> Json:
    metric = fields("One metric.", {"name": text("Its name."), "value": text("Its value, as text.")})
    return fields(
        "What the job's pods last reported about their progress.",
        {
            "progressPercentage": int32("How much of the training is done, from 0 to 100."),
            "estimatedRemainingSeconds": int32("How long the rest takes, as estimated by the training."),
            "metrics": items("Metrics of the training, such as its loss.", metric),
            "lastUpdatedTime": moment("When it was reported, by the clock of the pod."),
        },
    )
