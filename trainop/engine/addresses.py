"""Addresses: the names by which the replicas of a job reach each other.

The short name of a replica is that of its pod, in every service mode. With the modes `replica` and `leader` it is the
name of the replica's Service. With `job` the pods have host names within one Service, whose domain is in their search
list (`docs/annotations.md`).
"""

from __future__ import annotations

from trainop.engine.job import Job
from trainop.engine.seen import Options
from trainop.runtime import Json


def stem(job: Job, type_: str) -> str:
    """What precedes the index in all addresses of a role."""
    return f"{job.name}-{type_.lower()}-"


def address(job: Job, type_: str, index: int) -> str:
    """The short name of a replica."""
    return f"{stem(job, type_)}{index}"


def zone(job: Job, options: Options) -> str:
    """What follows a short name in the addresses of kinds that state the namespace."""
    domain = f".{options.cluster_domain}" if options.cluster_domain else ""
    subdomain = subdomain_of(job)
    return f"{subdomain and '.'}{subdomain}.{job.namespace}.svc{domain}"


def service_name(job_name: str) -> str:
    """The name of the Service of a whole job. It is never that of a replica's Service, which ends in a number, and has
    room wherever the name of a pod has: no replica type is shorter than PS, whose pods end in `-ps-0`."""
    return f"{job_name}-pods"


def subdomain_of(job: Job) -> str:
    """`subdomain` of the job's pods: the Service of the whole job; empty if the service mode is not `job`."""
    return service_name(job.name) if job.service_mode == "job" else ""


def dns_fields(job: Job, options: Options, given: object) -> Json:
    """`subdomain` and `dnsConfig` of the job's pods; `given` is the template's `dnsConfig`. Empty if the service mode
    is not `job`."""
    subdomain = subdomain_of(job)
    if not subdomain:
        return {}
    search = f"{subdomain}.{job.namespace}.svc.{options.dns_domain}"
    config = given if isinstance(given, dict) else {}
    searches = config.get("searches")
    before = [each for each in searches if each != search] if isinstance(searches, list) else []
    return {"subdomain": subdomain, "dnsConfig": {**config, "searches": [*before, search]}}
