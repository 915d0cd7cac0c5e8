"""`spec.elasticPolicy` of kinds whose number of workers may change while the job runs (upstream `*_defaults.go`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from trainop.engine.addresses import address
from trainop.engine.fields import Fields
from trainop.engine.framework import Companion, CompanionKind, variable
from trainop.engine.job import Job
from trainop.engine.leaders import WORKER
from trainop.runtime import Json, Resource


@dataclass(frozen=True, slots=True)
class Elastic:
    """The parsed `spec.elasticPolicy` with defaults; None: not given."""

    min_replicas: int
    max_replicas: int
    backend: str
    host: str
    port: int | None
    id: str
    configuration: str
    """rdzvConf in the format of torchrun: `k1=v1,k2=v2`."""
    standalone: bool
    processes: int | None
    """The deprecated field nProcPerNode."""
    max_restarts: int | None
    metrics: tuple[Json, ...]
    """Metrics of the HorizontalPodAutoscaler; without any there is none."""


def read_elastic(job: Job, fields: Fields) -> Elastic | None:
    """Parses the elastic policy; errors are added to `fields`. None if the job has none."""
    if job.spec.get("elasticPolicy") is None:
        return None
    at = "spec.elasticPolicy"
    raw = fields.mapping(at, job.spec["elasticPolicy"])
    min_replicas = fields.integer(f"{at}.minReplicas", raw.get("minReplicas"), minimum=1)
    max_replicas = fields.integer(f"{at}.maxReplicas", raw.get("maxReplicas"), minimum=1)
    if min_replicas is not None and max_replicas is not None and min_replicas > max_replicas:
        fields.invalid(
            f"{at}.minReplicas", min_replicas, f"must be less than or equal to maxReplicas, which is {max_replicas}"
        )
    worker = job.role(WORKER)
    default = worker.replicas if worker else 0
    return Elastic(
        min_replicas=next(count for count in (min_replicas, max_replicas, default) if count is not None),
        max_replicas=next(count for count in (max_replicas, min_replicas, default) if count is not None),
        backend=fields.text(f"{at}.rdzvBackend", raw.get("rdzvBackend")) or "c10d",
        host=fields.text(f"{at}.rdzvHost", raw.get("rdzvHost")),
        port=fields.integer(f"{at}.rdzvPort", raw.get("rdzvPort"), minimum=1, maximum=65535),
        id=fields.text(f"{at}.rdzvId", raw.get("rdzvId")),
        configuration=",".join(_read_pairs(fields, f"{at}.rdzvConf", raw.get("rdzvConf"))),
        standalone=fields.flag(f"{at}.standalone", raw.get("standalone")),
        processes=fields.integer(f"{at}.nProcPerNode", raw.get("nProcPerNode"), minimum=1),
        max_restarts=fields.integer(f"{at}.maxRestarts", raw.get("maxRestarts"), minimum=0),
        metrics=_read_metrics(fields, f"{at}.metrics", raw.get("metrics")),
    )


def autoscaler(kind: CompanionKind, target: Resource, job: Job, elastic: Elastic) -> Companion:
    """The HorizontalPodAutoscaler that scales the workers between the bounds of the policy (`pytorch/hpa.go`)."""
    spec = {
        "scaleTargetRef": {"apiVersion": target.api_version, "kind": target.kind, "name": job.name},
        "minReplicas": elastic.min_replicas,
        "maxReplicas": elastic.max_replicas,
        "metrics": list(elastic.metrics),
    }
    return Companion(kind, job.name, _encode_sorted(spec).decode(), lambda: {"spec": spec})


_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def rendezvous(job: Job, elastic: Elastic, port_name: str, default_port: int) -> list[Json]:
    """The variables by which torchrun's agents meet (`pytorch/elastic.go`)."""
    worker = job.role(WORKER)
    port = elastic.port or (worker.port(port_name) if worker else None) or default_port
    optional = {
        "PET_MAX_RESTARTS": elastic.max_restarts,
        "PET_NPROC_PER_NODE": elastic.processes,
        "PET_RDZV_ID": elastic.id or None,
        "PET_RDZV_CONF": elastic.configuration or None,
        # Upstream sets an empty value, with which torchrun fails because it parses flags as numbers.
        "PET_STANDALONE": 1 if elastic.standalone else None,
    }
    return [
        variable("PET_RDZV_ENDPOINT", f"{elastic.host or address(job, WORKER, 0)}:{port}"),
        variable("PET_RDZV_BACKEND", elastic.backend),
        variable("PET_NNODES", f"{elastic.min_replicas}:{elastic.max_replicas}"),
        *(variable(name, value) for name, value in optional.items() if value is not None),
    ]


def check_elastic(job: Job, fields: Fields, replica_specs: str) -> Elastic | None:
    """Validates the elastic policy, which requires the role Worker, and returns it."""
    elastic = read_elastic(job, fields)
    if elastic is not None and job.role(WORKER) is None:
        fields.required(f"spec.{replica_specs}[{WORKER}]", "must be configured if elastic policy is used")
    return elastic


def outlives_if_elastic(job: Job) -> str:
    """torchrun's agents of an elastic job meet again without the failed one (`Framework.outlives`)."""
    return "torchrun restarts the workers of an elastic job itself" if job.spec.get("elasticPolicy") is not None else ""


def _read_metrics(fields: Fields, at: str, raw: object) -> tuple[Json, ...]:
    return tuple(fields.entries(at, fields.sequence(at, raw), dict, fields.mapping))


class _Pair(msgspec.Struct, frozen=True, gc=False):
    key: str = ""
    value: str = ""


def _read_pairs(fields: Fields, at: str, raw: object) -> Iterator[str]:
    def read(at: str, value: object) -> _Pair:
        pair = fields.mapping(at, value)
        return _Pair(*(fields.text(f"{at}.{name}", pair.get(name)) for name in ("key", "value")))

    for pair in fields.entries(at, fields.sequence(at, raw), _Pair, read):
        yield f"{pair.key}={pair.value}"
