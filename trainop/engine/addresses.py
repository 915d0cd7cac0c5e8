"""Names: of pods and Services, and the addresses by which the replicas of a job reach each other.

The short name of a replica is that of its pod, in every service mode. With the modes `replica` and `leader` it is the
name of the replica's Service. With `job` the pods have host names within one Service, whose domain is in their search
list (`docs/annotations.md`).

The annotation or the flag asks for a mode. Pods keep the names that they were created with, so that the mode `job`
begins and ends only while the job has no pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from trainop.engine.fields import MAX_LABEL_LENGTH, label_faults
from trainop.engine.framework import Framework, Services
from trainop.engine.job import UNKNOWN_REPLICAS, Job, Role
from trainop.engine.seen import Options, Pod, UnreadablePod
from trainop.runtime import Json


def child_name(job_name: str, role: Role, index: int) -> str:
    """The name of the pod and of the service of a replica."""
    return child_namer(job_name, role)(index)


def child_namer(job_name: str, role: Role) -> Callable[[int], str]:
    """Like `child_name`, for many indices of one role: index -> name."""
    name = f"{job_name}-{role.label}".replace("/", "-")
    return (lambda index: f"{name}-{index}") if role.indexed else (lambda _index: name)


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


REPLICA, LEADER, JOB = "replica", "leader", "job"

MAX_SEARCHES = 32
"""Search domains of a pod, those of the cluster included (kubernetes `pkg/apis/core/validation`,
`MaxDNSSearchPaths`)."""
MAX_SEARCH_LENGTH = 2048
"""Characters of all search domains together, with spaces in between."""

OWN_NAMES = ("hostname", "subdomain", "setHostnameAsFQDN")
"""Fields of a pod spec by which users name their pods. A complete name of a pod in a Service is often longer than the
64 characters that `setHostnameAsFQDN` allows."""
CLUSTER_FIRST, WITH_HOST_NETWORK = "ClusterFirst", "ClusterFirstWithHostNet"


def settle_mode(framework: Framework, job: Job, options: Options, pods: Iterable[Pod] = ()) -> Job:
    """The job with the mode in force; `pods` are its pods of any phase. Pods of mode `job` keep it alive, and pods of
    another mode keep it out: these have no names in the Service of the job, so that each replica needs its own."""
    wanted = wanted_mode(job, options)
    made = {has_name_in(job, pod) for pod in pods if not isinstance(pod, UnreadablePod)}
    if not _has_services(framework):
        mode = REPLICA
    elif True in made:
        mode = JOB
    elif wanted == JOB and (made or find_obstacle(framework, job, options)):
        mode = REPLICA
    else:
        mode = wanted
    return replace(job, service_mode=mode)


def wanted_mode(job: Job, options: Options) -> str:
    """The mode that the annotation or, without it, the flag asks for."""
    return job.extensions.service_mode or options.service_mode


def has_name_in(job: Job, pod: Pod) -> bool:
    """Whether the pod has a name in the Service of the whole job."""
    return pod.spec.subdomain == service_name(job.name)


def find_obstacle(framework: Framework, job: Job, options: Options) -> str:
    """Why the pods of the job cannot have names in one Service: the field, and the reason. Empty if they can."""
    name = service_name(job.name)
    if label_faults(name):
        return f"metadata.name: {name} is no valid name of a Service"
    for role in job.roles:
        longest = child_name(job.name, role, max(role.replicas, 1) - 1)
        if len(longest) > MAX_LABEL_LENGTH and role.replicas != UNKNOWN_REPLICAS:
            return f"metadata.name: {longest} has more than the {MAX_LABEL_LENGTH} characters of a host name"
        if role.has_valid_template:
            at = f"spec.{framework.replica_specs}[{role.type}].template.spec"
            if problems := list(_obstacles(role.template["spec"], replace(job, service_mode=JOB), options)):
                return f"{at}.{problems[0]}"
    return ""


def _obstacles(spec: Json, job: Job, options: Options) -> Iterator[str]:
    for field in OWN_NAMES:
        if spec.get(field):
            yield f"{field}: the host name of each pod has to be the name of the pod"
    policy = spec.get("dnsPolicy") or CLUSTER_FIRST
    if policy not in (CLUSTER_FIRST, WITH_HOST_NETWORK):
        yield f"dnsPolicy: the cluster's DNS is used only with {CLUSTER_FIRST} and {WITH_HOST_NETWORK}"
    elif spec.get("hostNetwork") and policy != WITH_HOST_NETWORK:
        yield f"hostNetwork: the cluster's DNS is used only with dnsPolicy {WITH_HOST_NETWORK}"
    config = spec.get("dnsConfig")
    given = config.get("searches") if isinstance(config, dict) else None
    if (config and not isinstance(config, dict)) or not _are_texts(given or []):
        yield "dnsConfig: must have a list of search domains"
        config = None
    domain = options.dns_domain
    cluster = [f"{job.namespace}.svc.{domain}", f"svc.{domain}", domain]
    searches = [*cluster, *dns_fields(job, options, config)["dnsConfig"]["searches"]]
    if len(searches) > MAX_SEARCHES or len(" ".join(searches)) > MAX_SEARCH_LENGTH:
        limit = f"{MAX_SEARCHES} search domains and {MAX_SEARCH_LENGTH} characters"
        yield f"dnsConfig.searches: no room for another domain, since a pod has at most {limit}"


def _has_services(framework: Framework) -> bool:
    return any(rules.services is not Services.NONE for rules in framework.roles.values())


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def missed_mode(framework: Framework, job: Job, options: Options) -> str:
    """The message about a job that is to have the mode `job` and cannot; empty if there is nothing to say. Only for a
    job without pods: a job with pods may have another mode because of them."""
    if job.service_mode == JOB or wanted_mode(job, options) != JOB or not _has_services(framework):
        return ""
    obstacle = find_obstacle(framework, job, options)
    return obstacle and f"service-mode {JOB} is not possible, so the job uses {REPLICA}: {obstacle}"
