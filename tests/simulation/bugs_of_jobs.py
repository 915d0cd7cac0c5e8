"""Planted bugs in the plan of a job: its pods, services, status, limits and end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tests.engine.builders import pod_deleted
from tests.simulation.planting import bug, patch
from trainop.engine import assess, children, evidence, failures, leaders, manifests, phases, root_cause, status
from trainop.engine import plan as engine
from trainop.engine.addresses import dns_fields, settle_mode
from trainop.engine.children import Children, RoleSlots
from trainop.engine.framework import JOB_ROLE, Tally
from trainop.engine.manifests import Manifests
from trainop.engine.restart_history import RESTARTS
from trainop.engine.root_cause import Failure
from trainop.engine.status import Status
from trainop.engine.steps import replicas
from trainop.engine.steps.builder import ReplicasBuilder
from trainop.engine.steps.replicas import sweep
from trainop.runtime.clock import LATEST

# Pods and services ----------------------------------------------------------------------------------------------------


@bug("Every pod of a role gets the index of the first one.")
def index_of_the_first():
    make = Manifests.__init__

    def of_the_first(self: Manifests, *args: Any) -> None:
        make(self, *args)
        environment = self._environment
        self._environment = lambda role, _index: environment(role, 0)

    return patch(Manifests, "__init__", of_the_first)


@bug("Pods of the leading role do not have the label job-role.")
def leader_without_label():
    pod = Manifests.pod

    def unlabelled(self: Manifests, role: Any, index: int) -> bytes:
        return pod(self, role, index).replace(JOB_ROLE.encode(), b"role")

    return patch(Manifests, "pod", unlabelled)


@bug("Pods whose policy is ExitCode are restarted by the kubelet, too.")
def exit_code_left_to_the_kubelet():
    return mock.patch.dict("trainop.engine.manifests.POD_RESTART_POLICY", {"ExitCode": "OnFailure"})


@bug("The last replica of a role gets no service.")
def last_service_missing():
    lacking = replicas._lacking_services

    def all_but_the_last(builder: ReplicasBuilder, role: Any, present: set[int]) -> Iterator[int]:
        return (index for index in lacking(builder, role, present) if index + 1 < role.replicas or index == 0)

    return patch(replicas, "_lacking_services", all_but_the_last)


@bug("Service mode `leader` is ignored: each replica gets a service.")
def service_mode_ignored():
    def lacking(_begin: ReplicasBuilder, role: Any, present: set[int]) -> Iterator[int]:
        return (index for index in range(role.replicas) if index not in present)

    return patch(replicas, "_lacking_services", lacking)


@bug("Service mode `job` begins and ends when the annotation is edited, although pods keep their names.")
def service_mode_switched_at_once():
    return patch(engine, "settle_mode", lambda framework, job, options, _pods: settle_mode(framework, job, options))


@bug("Without the search domain, pods of service mode `job` do not resolve short names.")
def search_domain_missing():
    def without_searches(*args: Any) -> Any:
        fields = dns_fields(*args)
        fields.pop("dnsConfig", None)
        return fields

    return patch(manifests, "dns_fields", without_searches)


@bug("Services beyond the number of replicas stay.")
def services_of_fewer_replicas_stay():
    sort = replicas._sort_services

    def without_deletes(builder: ReplicasBuilder, lines: Any) -> Any:
        before = list(builder.actions)
        present = sort(builder, lines)
        builder.actions = before
        return present

    return patch(replicas, "_sort_services", without_deletes)


@bug("Pods beyond the number of replicas stay.")
def pods_of_fewer_replicas_stay():
    return patch(engine, "remove_surplus", lambda *_: None)


# Status ---------------------------------------------------------------------------------------------------------------


@bug("A pod that is being deleted counts as active.")
def dying_pods_counted():
    tally = RoleSlots.tally

    def with_dying(self: RoleSlots, *void: Any) -> Tally:
        found = tally(self, *void)
        found.active += sum(pod.status.phase == "Running" for pod in self.terminating.values())
        return found

    return patch(RoleSlots, "tally", with_dying)


@bug("The counters of a role show one pod that has succeeded too few.")
def one_success_too_few():
    counters = status._counters

    def fewer(tally: Tally) -> Any:
        found = counters(tally)
        return found | ({"succeeded": tally.succeeded - 1} if tally.succeeded > 1 else {})

    return patch(status, "_counters", fewer)


@bug("replicaStatuses have no selector, by which the autoscaler finds the pods.")
def selector_missing():
    return patch(status, "selector_text", lambda *_: "")


@bug("A condition that changes keeps its place in the list, so that the column State shows another one.")
def condition_keeps_its_place():
    put = Status.set

    def in_place(self: Status, type_: str, *args: Any, **options: Any) -> bool:
        places = [condition["type"] for condition in self.conditions]
        changed = put(self, type_, *args, **options)
        if changed and type_ in places:
            self.conditions.insert(places.index(type_), self.conditions.pop())
        return changed

    return patch(Status, "set", in_place)


@bug("The last failure is named as the root cause, not the first.")
def last_failure_blamed():
    find = root_cause.find_cause

    def find_last(standing: Sequence[Failure], past: Sequence[Failure] = ()) -> Failure | None:
        return max(standing, key=lambda each: each.at or LATEST) if standing else find(standing, past)

    return patch(evidence, "find_cause", find_last)


@bug("The end of a pod that the operator stops is taken for a failure.")
def stopped_pods_blamed():
    return patch(evidence, "_is_stopped", lambda *_: False)


@bug("Restarting stays when the job has finished.")
def restarting_stays():
    return mock.patch.dict(status.TRAINING_OPERATOR.removes, {"Succeeded": (), "Failed": ()})


@bug("A suspended job still says that it runs.")
def running_while_suspended():
    def suspend(builder: ReplicasBuilder) -> Any:
        put = builder.status.set

        def without_running(type_: str, *args: Any, **options: Any) -> bool:
            return type_ != "Running" and put(type_, *args, **options)

        builder.status.set = without_running  # type: ignore[method-assign]
        return whole(builder)

    whole = engine._suspend
    return patch(engine, "_suspend", suspend)


@bug("startTime of a resumed job is that of its first start.")
def start_time_kept():
    return patch(Status, "forget_start", lambda _self: None)


# Limits ---------------------------------------------------------------------------------------------------------------


def _limit_moved(by: int) -> Any:
    exceeded = failures.exceeded

    def moved(job: Any, lines: Any, findings: Any, history: Any, fresh: failures.NewRestarts) -> Any:
        return exceeded(job, lines, findings, history, fresh._replace(failures=max(0, fresh.failures + by)))

    return patch(assess, "exceeded", moved)


@bug("One failure more than backoffLimit is allowed.")
def backoff_limit_one_more():
    return _limit_moved(-1)


@bug("One failure less than backoffLimit is allowed.")
def backoff_limit_one_less():
    exceeded = failures.exceeded

    def early(job: Any, lines: Any, findings: Any, history: Any, fresh: failures.NewRestarts) -> Any:
        more = fresh._replace(failures=fresh.failures + 1) if fresh.failures else fresh
        return exceeded(job, lines, findings, history, more)

    return patch(assess, "exceeded", early)


@bug("One disruption more than infra-restart-limit is allowed.")
def infra_limit_one_more():
    exceeded = failures.exceeded

    def late(job: Any, lines: Any, findings: Any, history: Any, fresh: failures.NewRestarts) -> Any:
        return exceeded(job, lines, findings, history, fresh._replace(disruptions=max(0, fresh.disruptions - 1)))

    return patch(assess, "exceeded", late)


@bug("An evicted pod counts as a failure of the user's code.")
def eviction_counts_as_failure():
    return patch(failures, "disrupted", lambda _: False)


@bug("Restarts from before a suspension count on after it.")
def restarts_not_forgotten():
    resume = engine._resume

    def remember(builder: ReplicasBuilder) -> None:
        resume(builder)
        builder.annotations.pop(RESTARTS, None)

    return patch(engine, "_resume", remember)


@bug("Restarts within a pod do not count towards backoffLimit.")
def restarts_in_place_not_counted():
    return patch(failures, "_container_restarts", lambda _: 0)


# Failures and success -------------------------------------------------------------------------------------------------


@bug("Under policy ExitCode the exit code 130 fails the job.")
def retryable_code_fails():
    return patch(failures, "RETRYABLE_EXIT_CODE", 131)


@bug("Under policy ExitCode the exit code decides before the disruption condition of the pod.")
def exit_code_before_disruption():
    def by_code(role: Any, pod: Any) -> bool:
        code = pod.exit_code(role.container)
        return role.restart_policy != "Never" and (role.restart_policy != "ExitCode" or code is None or code >= 128)

    return patch(failures, "may_restart", by_code)


@bug("A failed pod is restarted under policy Never, too.")
def never_restarted():
    return patch(failures, "may_restart", lambda *_: True)


@bug("A job succeeds as soon as one replica of the deciding role has.")
def first_success_is_enough():
    follow = leaders.follow

    def soon(role: Any, tallies: Any, **_: Any) -> Any:
        return follow(role, tallies, enough=1)

    @contextmanager
    def plant() -> Iterator[None]:
        with ExitStack() as stack:
            for module in ("engine.leaders", "kinds.pytorch", "kinds.mxnet", "kinds.xgboost"):
                stack.enter_context(mock.patch(f"trainop.{module}.follow", soon))
            yield

    return plant()


@bug("Phase Succeeded without an exit code completes worker 0 of a TFJob.")
def phase_alone_completes_worker_0():
    return patch(children, "_has_completed", lambda pod, _: pod.status.phase == "Succeeded")


# The end --------------------------------------------------------------------------------------------------------------


def _sweeping(change: Any) -> Any:
    """Clean up with a changed cleanPodPolicy."""

    def swept(children: Children, policy: str, *surplus: Any) -> Any:
        return sweep(children, change(policy), *surplus)

    return patch(engine, "sweep", swept)


@bug("cleanPodPolicy Running deletes the pods that have ended, too.")
def running_means_all():
    return _sweeping(lambda policy: "All" if policy == "Running" else policy)


@bug("cleanPodPolicy All, and a suspension, keep the pods that have ended.")
def all_means_running():
    return _sweeping(lambda policy: "Running" if policy == "All" else policy)


@bug("cleanPodPolicy None deletes running pods.")
def none_means_running():
    return _sweeping(lambda policy: "Running" if policy == "None" else policy)


@bug("Running pods of replicas that were scaled away are kept after the end.")
def surplus_left_at_the_end():
    return patch(engine, "sweep", lambda children, policy, *_: sweep(children, policy))


@bug("A job that fails at a limit leaves its pods running if the policy is None.")
def limit_leaves_pods():
    clean_up = engine._clean_up
    return patch(engine, "_clean_up", lambda builder, **_: clean_up(builder, abrupt=False))


@bug("Services are deleted only together with a pod of their name.")
def services_outlive_vanished_pods():
    def swept(children: Children, policy: str, *surplus: Any) -> Any:
        pods = {pod.metadata.name for pod in children.pods.owned}
        found = sweep(children, policy, *surplus)
        return (action for action in found if pod_deleted(action) or action.name in pods)

    return patch(engine, "sweep", swept)


@bug("The time to live counts from the start of the job.")
def time_to_live_from_the_start():
    return patch(Status, "completion_time", property(lambda self: self.start_time))


# The account of the time ----------------------------------------------------------------------------------------------


@bug("The account of a job begins anew with each status.")
def account_not_continued():
    return patch(phases, "read_account", lambda _raw: None)


@bug("The last run of a job that has succeeded counts as lost.")
def success_lost():
    return patch(phases, "_has_succeeded", lambda _status: False)
