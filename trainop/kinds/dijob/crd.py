"""The CRDs of DIJob and AggregatorConfig (DI-orchestrator `config/crd/bases/`).

Pod templates and volumes are not pruned: upstream's schemas are those of Kubernetes 1.20, drop labels and annotations
of templates, and are too large for plain `kubectl apply`. There is no conversion.
"""

from __future__ import annotations

import copy

from trainop.engine.phases import ACCOUNT
from trainop.engine.progress import TRAINER_STATUS
from trainop.engine.root_cause import LAST_FAILURE
from trainop.engine.schema.crd import AGE, COUNTERS, condition, definition
from trainop.engine.schema.failure import last_failure
from trainop.engine.schema.openapi import fields, items, mapping, open_fields, text
from trainop.engine.schema.podschema import pod_template
from trainop.engine.schema.progress import PROGRESS_COLUMNS, account, trainer_status
from trainop.kinds.dijob.names import AGGREGATOR_CONFIGS, DIJOBS, MAIN_CONTAINER, Role
from trainop.runtime import Json

_PHASE: Json = {"name": "Phase", "type": "string", "jsonPath": ".status.phase"}
_NONE: Json = {"strategy": "None"}
_OPEN = {"x-kubernetes-preserve-unknown-fields": True}

_ROLES = {
    Role.COORDINATOR: "The pod that hands out tasks; its end is the end of the job.",
    Role.COLLECTOR: "The pods that produce data. di-server creates them when the coordinator asks for them.",
    Role.LEARNER: "The pods that train. di-server creates them when the coordinator asks for them.",
}


def dijob_crd() -> Json:
    spec = {
        "group": text("A name for a collection of jobs; the operator does not read it."),
        "priorityClassName": text("The priority class of all pods of the job."),
        "cleanPodPolicy": text(
            "Which pods are deleted when the job has finished: Running (and pending ones), All or None. Running if not "
            "given."
        ),
        "volumes": items(
            "Volumes of all pods but aggregators, in addition to those of their templates.",
            open_fields("One volume.", {"name": text("Unique within each pod.")}, required=["name"]),
        ),
        **{role.value: _section(description) for role, description in _ROLES.items()},
    }
    schema = {
        "spec": fields("The desired state of the job.", spec, required=[Role.COORDINATOR.value]),
        "status": _status(),
    }
    what = "DIJob is a job of DI-engine: a coordinator, and collectors and learners that it asks for."
    columns = [_PHASE, AGE, *PROGRESS_COLUMNS]
    names = {"shortNames": ["dijob"]}
    return definition(DIJOBS, what, schema, columns, required=["spec"], names=names, conversion=_NONE)


def aggregator_config_crd() -> Json:
    section = _section("The pod that merges the results of the learners of one group.")
    spec = fields("The template of all aggregators.", {"aggregator": section}, required=["aggregator"])
    what = "AggregatorConfig is the template of aggregators, which all DIJobs share."
    names = {"shortNames": ["agconfig"]}
    return definition(AGGREGATOR_CONFIGS, what, {"spec": spec}, [AGE], required=["spec"], names=names, conversion=_NONE)


def _section(description: str) -> Json:
    return fields(description, {"template": _template()}, required=["template"])


def _template() -> Json:
    """The common schema of pod templates. Unlike that of other kinds it keeps all metadata."""
    found = copy.deepcopy(pod_template())
    metadata, spec = found["properties"]["metadata"], found["properties"]["spec"]
    metadata |= _OPEN
    metadata["properties"]["name"]["description"] = "Not used: pods are named after the job and their role."
    spec["properties"]["restartPolicy"]["description"] = "Never for the coordinator if not given, else Always."
    named = f"The containers. {MAIN_CONTAINER} gets the ports, and its end is the end of the coordinator."
    spec["properties"]["containers"]["description"] = named
    return found


def _status() -> Json:
    return fields(
        "The observed state of the job, written by the operator.",
        {
            "phase": text("Created, Running, Succeeded or Failed, as the pod of the coordinator."),
            "conditions": items(
                "The phases that the job has entered, in order.",
                condition("One phase.", "Created, Running, Succeeded or Failed."),
            ),
            "replicaStatus": mapping("Pods by role.", fields("The number of pods by state.", dict(COUNTERS))),
            LAST_FAILURE: last_failure(),
            TRAINER_STATUS: trainer_status(),
            ACCOUNT: account(),
        },
    )
