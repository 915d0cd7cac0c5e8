"""The schemas of `status.trainerStatus` and `status.account`, which all kinds of jobs have, and the columns of the
first."""

from __future__ import annotations

from trainop.engine.schema.openapi import fields, int32, int64, items, moment, text
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


def account() -> Json:
    return fields(
        "What the time of the job was spent on. Written when it ends, is suspended or is restarted.",
        {
            "queuedSeconds": int64("It was suspended, or waited to begin."),
            "startingSeconds": int64("From startTime until it ran."),
            "trainingSeconds": int64("It ran."),
            "restartingSeconds": int64("Failed replicas were replaced."),
            "lostSeconds": int64("Of trainingSeconds, what had to be trained again."),
            "lastLostSeconds": int64("Of lostSeconds, those that the latest interruption cost."),
            "lostSince": text(
                "Checkpoint: lost since the last checkpoint that was reported. Attempt: no checkpoint was reported at "
                "least once, so that all since the job began to run counts as lost."
            ),
            "goodputPercent": int32("The part of the time in which the job trained, without what was lost."),
            "until": moment("The end of the time that is accounted for."),
        },
    )
