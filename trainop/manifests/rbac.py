"""The rights of the operator, and the roles of its users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trainop.controllers.admission import configurations_of, webhooks_of
from trainop.controllers.gang import PRIORITY_CLASSES
from trainop.controllers.train_jobs import TRAINER_WEBHOOKS
from trainop.engine.actions import Need
from trainop.engine.framework import GROUP
from trainop.engine.gang_scheduler import BACK_ENDS
from trainop.engine.kind import Kind
from trainop.engine.kueue import FLAVORS, LOCAL_QUEUES, WORKLOAD_CLASSES, WORKLOADS
from trainop.engine.seen import EVICTIONS, Options
from trainop.engine.steps.rights import BINDING, ROLE
from trainop.kinds.jax import JAX
from trainop.kinds.mpi.exec.kind import ACCOUNT
from trainop.kinds.mpi.transport import LAUNCHER_JOBS, MPI_V1
from trainop.kinds.pytorch import PYTORCH
from trainop.kinds.trainjob.names import CLUSTER_RUNTIMES, RUNTIMES, TRAIN_JOBS
from trainop.manifests.names import LEASES_ROLE, NAME, RBAC, WEBHOOK_ROLE, WEBHOOK_SECRET
from trainop.programs.schemes import KINDS, all_kinds, kinds_with_webhooks
from trainop.runtime import (
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Json,
    Resource,
)

_AGGREGATION = "rbac.authorization.kubeflow.org/aggregate-to-kubeflow-"
_STANDARD = "rbac.authorization.k8s.io/aggregate-to-"


def _rule(resources: Iterable[Resource | str], verbs: str, group: str | None = None, name: str = "") -> Json:
    listed = list(resources)
    found = next((resource.group for resource in listed if isinstance(resource, Resource)), "")
    names = [resource.plural if isinstance(resource, Resource) else resource for resource in listed]
    rule = {"apiGroups": [found if group is None else group], "resources": names, "verbs": verbs.split()}
    return {**rule, "resourceNames": [name]} if name else rule


def job_resources(kinds: Sequence[Kind] = ()) -> dict[str, list[str]]:
    """API group -> the resources of its kinds of jobs, by default of all."""
    found: dict[str, set[str]] = {GROUP: set()}
    for kind in kinds or all_kinds():
        found.setdefault(kind.resource.group, set()).add(kind.resource.plural)
    return {group: sorted(plurals) for group, plurals in found.items()}


def _jobs(verbs: str, subresource: str = "", kinds: Sequence[Kind] = ()) -> list[Json]:
    """One rule for each API group of jobs."""
    suffix = f"/{subresource}" if subresource else ""
    return [
        _rule([f"{plural}{suffix}" for plural in plurals], verbs, group)
        for group, plurals in job_resources(kinds).items()
    ]


def rules(kinds: Sequence[Kind] = ()) -> list[Json]:
    """The permissions that the operator needs in the namespaces of jobs; only those that its code uses for the kinds,
    by default for all."""
    return [
        *_operated_jobs(kinds),
        *_jobs("patch update", "status", kinds),
        *_children(kinds),
        *(_rule([resource], verbs) for resource, verbs in companion_rights(kinds)),
        # Only used with --gang-scheduler-name.
        *(
            _rule(list(filter(None, (each.groups, each.workloads))), "get list watch create patch delete")
            for each in BACK_ENDS
        ),
        _rule([EVENTS], "create patch"),
    ]


def _operated_jobs(kinds: Sequence[Kind]) -> list[Json]:
    """DIJobs have neither annotations of ours nor a time to live, and do not block the deletion of their owner."""
    found = []
    for group, plurals in job_resources(kinds).items():
        if group != GROUP:
            found.append(_rule(plurals, "get list watch", group))
            continue
        found.append(_rule(plurals, "get list watch patch delete", group))
        # Required to set `blockOwnerDeletion` if the admission plugin OwnerReferencesPermissionEnforcement is enabled.
        found.append(_rule([f"{plural}/finalizers" for plural in plurals], "update", group))
    return found


def _children(kinds: Sequence[Kind]) -> list[Json]:
    """MPIJobs keep their Services until the garbage collector deletes them."""
    verbs = "get list watch create patch"
    if set(job_resources(kinds)[GROUP]) == {MPI_V1.plural}:
        return [_rule([PODS], f"{verbs} delete"), _rule([SERVICES], verbs)]
    return [_rule([PODS, SERVICES], f"{verbs} delete")]


def companion_rights(kinds: Sequence[Kind] = ()) -> list[tuple[Resource, str]]:
    """Resources that are created for jobs in addition to pods and services, with verbs. Those that pods refer to live
    as long as the job: the garbage collector deletes them. Those of components are left out."""
    chosen = kinds or all_kinds()
    apart = {resource for kind in chosen for resource in kind.component_resources}
    found_kinds = {each for kind in chosen for each in kind.companion_kinds if each.resource not in apart}
    verbs = "get list watch create patch"
    found = {(kind.resource, verbs if kind.need is Need.JOB else f"{verbs} delete") for kind in found_kinds}
    return sorted(found, key=str)


def ssh_rules() -> list[Json]:
    """The additional permissions for MPIJobs with transport ssh. The key of a job is created once and read by name."""
    return [
        _rule([LAUNCHER_JOBS], "get list watch create patch delete"),
        _rule(["jobs/status"], "patch", LAUNCHER_JOBS.group),
        _rule([SECRETS], "get create patch"),
    ]


def exec_rules() -> list[Json]:
    """The additional permissions for MPIJobs with transport exec. The launcher of such a job may execute commands in
    its workers; the API server lets the operator grant only what it may do itself."""
    return [
        _rule(["pods/exec"], "create", ""),
        *(_rule([each.resource], "get list watch create patch") for each in (ACCOUNT, ROLE, BINDING)),
    ]


def eviction_rules() -> list[Json]:
    """The additional permissions for jobs whose Evictions the operator answers."""
    return [_rule([EVICTIONS], "get list watch"), _rule(["evictions/status"], "patch", EVICTIONS.group)]


def queue_rules() -> list[Json]:
    """The additional permissions for jobs that the operator queues with Kueue itself. The flavors and the classes are
    objects of the cluster: no Role grants them."""
    return [
        _rule([WORKLOADS], "get list watch create patch delete"),
        _rule(["workloads/status"], "patch", WORKLOADS.group),
        _rule([FLAVORS, WORKLOAD_CLASSES], "get list watch"),
    ]


def train_job_rules(*, everywhere: bool) -> list[Json]:
    """The additional permissions for TrainJobs, with the scheme TrainJob: to make the jobs that run them, and to read
    runtimes. Unless it is of one namespace, the operator also reads those of the cluster, and whether Kubeflow Trainer
    is installed."""
    found = [
        _rule([TRAIN_JOBS], "get list watch"),
        _rule([f"{TRAIN_JOBS.plural}/status"], "patch", TRAIN_JOBS.group),
        _rule([f"{TRAIN_JOBS.plural}/finalizers"], "update", TRAIN_JOBS.group),
        _rule([RUNTIMES], "get"),
        _rule([PYTORCH.resource, JAX.resource, MPI_V1], "get create"),
    ]
    if everywhere:
        found += [
            _rule([CLUSTER_RUNTIMES], "get"),
            _rule([VALIDATING_WEBHOOK_CONFIGURATIONS], "get", name=TRAINER_WEBHOOKS),
        ]
    return found


def review_rules() -> list[Json]:
    """The rights to ask the API server who the bearer of a token is, and what they may do. Reviews are objects of the
    cluster: no Role grants them."""
    return [
        _rule(["tokenreviews"], "create", "authentication.k8s.io"),
        _rule(["subjectaccessreviews"], "create", "authorization.k8s.io"),
    ]


def _role(kind: str, name: str, rules: Sequence[Json], labels: Mapping[str, str] | None = None) -> Json:
    metadata: Json = {"name": name, **({"labels": dict(labels)} if labels else {})}
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": list(rules)}


def _binding(kind: str, name: str, namespace: str | None, account: str = NAME) -> Json:
    subject = {"kind": "ServiceAccount", "name": account, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [subject],
    }


def cluster_role() -> Json:
    """The permissions in all namespaces, to read PriorityClasses for gang scheduling, and to write the CA into the
    operator's own webhook configurations."""
    injections = [
        _rule([each.resource], "get list watch patch", name=each.name)
        for each in configurations_of(webhooks_of(kinds_with_webhooks()))
    ]
    return _role("ClusterRole", NAME, [*rules(), _rule([PRIORITY_CLASSES], "list watch"), *injections])


def cluster_role_binding(namespace: str | None = None) -> Json:
    return _binding("ClusterRole", NAME, namespace)


def component_roles(kind: str = "ClusterRole", namespace: str | None = None) -> dict[str, list[Json]]:
    """The roles of the components that only add rights, by name of the component. `kind` is ClusterRole, or Role for
    rights in one namespace."""
    rights = {"mpi-exec": exec_rules(), "mpi-ssh": ssh_rules(), "eviction-responder": eviction_rules()}
    rights["train-jobs"] = train_job_rules(everywhere=kind == "ClusterRole")
    if kind == "ClusterRole":
        rights["kueue"] = queue_rules()
    return {
        name: [_role(kind, f"{NAME}-{name}", found), _binding(kind, f"{NAME}-{name}", namespace)]
        for name, found in rights.items()
    }


def secure_metrics_roles() -> list[Json]:
    name = f"{NAME}-secure-metrics"
    return [_role("ClusterRole", name, review_rules()), _binding("ClusterRole", name, None)]


def progress_roles() -> list[Json]:
    name = f"{NAME}-progress"
    return [_role("ClusterRole", name, review_rules()[:1]), _binding("ClusterRole", name, None)]


def mpi_operator_roles(name: str) -> list[Json]:
    """The rights of the program mpi-operator with transport ssh, for the service account `name`."""
    kinds = KINDS["MPIJob"](Options())
    jobs = [*rules(kinds), *ssh_rules(), _rule([PRIORITY_CLASSES], "list watch")]
    leases = f"{name}-leader-election"
    return [
        _role("ClusterRole", name, jobs),
        _binding("ClusterRole", name, None, name),
        _role("Role", leases, [_rule([LEASES], "get create update")]),
        _binding("Role", leases, None, name),
    ]


def mpi_operator_exec_roles(name: str) -> list[Json]:
    """The rights that transport exec adds for the service account `name`."""
    role = f"{name}-exec"
    return [_role("ClusterRole", role, exec_rules()), _binding("ClusterRole", role, None, name)]


def leases_role() -> Json:
    """Permissions for leader election, only in the operator's namespace."""
    return _role("Role", LEASES_ROLE, [_rule([LEASES], "get create update")])


def leases_role_binding(namespace: str | None = None) -> Json:
    return _binding("Role", LEASES_ROLE, namespace)


def webhook_role() -> Json:
    """Permissions for the Secret with the webhook certificates, only in the operator's namespace. RBAC cannot limit
    `create` to a name."""
    rights = [_rule([SECRETS], "get list watch update", name=WEBHOOK_SECRET), _rule([SECRETS], "create")]
    return _role("Role", WEBHOOK_ROLE, rights)


def webhook_role_binding(namespace: str | None = None) -> Json:
    return _binding("Role", WEBHOOK_ROLE, namespace)


def namespaced_role() -> Json:
    return _role("Role", NAME, rules())


def namespace_admin_role() -> Json:
    """A ClusterRole aggregated into `admin`, so that who has that role in a namespace can install the overlay
    `namespaced` there with all its components: the API server lets nobody grant rights that they do not have."""
    of_components = [*ssh_rules(), *exec_rules(), *train_job_rules(everywhere=False), *page_rules(everywhere=False)]
    granted = [*rules(), *of_components, _rule([LEASES], "get create update")]
    return _role("ClusterRole", f"{NAME}-namespace-admins", granted, {f"{_STANDARD}admin": "true"})


def namespaced_role_binding() -> Json:
    return _binding("Role", NAME, None)


def _edit_jobs() -> list[Json]:
    return [*_jobs("create delete get list patch update watch"), *_jobs("get", "status")]


def _view_jobs() -> list[Json]:
    return [*_jobs("get list watch"), *_jobs("get", "status")]


def standard_user_roles() -> list[Json]:
    """ClusterRoles for users, aggregated into the roles admin, edit and view of every cluster."""
    editors = {f"{_STANDARD}{role}": "true" for role in ("admin", "edit")}
    return [
        _role("ClusterRole", f"{NAME}-edit", _edit_jobs(), editors),
        _role("ClusterRole", f"{NAME}-view", _view_jobs(), {f"{_STANDARD}view": "true"}),
    ]


def page_rules(*, everywhere: bool) -> list[Json]:
    """What the page reads for its users, except for stacks, which need exec. What belongs to the cluster, and the
    Deployment of the operator, are read only in an installation for all namespaces."""
    found = [
        *_jobs("get list"),
        _rule([PODS, EVENTS], "list"),
        _rule(["pods/log"], "get", ""),
        *(_rule([each.groups], "get") for each in BACK_ENDS),
        _rule([WORKLOADS, LOCAL_QUEUES], "list"),
    ]
    if everywhere:
        operators = [NAME, "mpi-operator", "di-operator"]
        definitions = [f"{plural}.{group}" for group, plurals in job_resources().items() for plural in plurals]
        found += [
            _rule([NODES], "get"),
            _rule(["deployments"], "list", "apps") | {"resourceNames": operators},
            _rule([CUSTOM_RESOURCE_DEFINITIONS], "get") | {"resourceNames": definitions},
        ]
    return found


def page_reader(kind: str) -> Json:
    """The role of those who look at the page. Bound to nobody."""
    return _role(kind, f"{NAME}-page-reader", page_rules(everywhere=kind == "ClusterRole"))


def user_roles() -> list[Json]:
    """ClusterRoles for users, aggregated into the admin, edit and view roles of Kubeflow profiles."""
    selector = {"matchLabels": {f"{_AGGREGATION}training-admin": "true"}}
    admin = _role("ClusterRole", "kubeflow-training-admin", [], {f"{_AGGREGATION}admin": "true"})
    edit = [
        *_edit_jobs(),
        _rule(["persistentvolumeclaims"], "create delete get list watch"),
        _rule([EVENTS], "get list watch"),
    ]
    return [
        {**admin, "aggregationRule": {"clusterRoleSelectors": [selector]}},
        _role(
            "ClusterRole",
            "kubeflow-training-edit",
            edit,
            {f"{_AGGREGATION}edit": "true", f"{_AGGREGATION}training-admin": "true"},
        ),
        _role(
            "ClusterRole",
            "kubeflow-training-view",
            _view_jobs(),
            {f"{_AGGREGATION}view": "true"},
        ),
    ]
