"""Running jobs of every kind, and all that the API server has of them."""

from __future__ import annotations

import re
from collections import Counter
from http import HTTPStatus
from typing import Any

from e2e.cluster.api import Api
from tests.kinds.dijob_world import dijob
from tests.server.di_life import DIJOBS
from tests.server.kinds import ROWS, KindWorld
from tests.server.mpi_life import BATCH, MPI, MPI_V2, _job
from tests.server.process import Operator, fetch
from tests.server.world import CORE, World, container
from trainop.programs.schemes import FRAMEWORKS

PARTS = (
    *(f"{CORE}/{plural}" for plural in ("pods", "services", "configmaps", "secrets", "serviceaccounts")),
    *(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{{namespace}}/{plural}" for plural in ("roles", "rolebindings")),
    BATCH,
    f"{CORE}/events",
)


class Fleet:
    """A job of every kind in one namespace, each with all its pods."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.world = World(api, namespace)
        self._jobs = {DIJOBS, MPI}

    def create(self) -> None:
        for framework in FRAMEWORKS.values():
            stage = KindWorld(self.world.api, framework, self.world.namespace)
            stage.create(framework.name, ROWS[framework.kind].counts)
            self._jobs.add(stage.jobs)
        for path, name in ((MPI, "by-exec"), (MPI_V2, "by-ssh")):
            self.world.ask("POST", path, _job(path, name))
        self.world.ask("POST", DIJOBS, {**dijob(), "metadata": {"name": "di"}})

    def wait_complete(self) -> None:
        """Until every job has all its pods; they run."""
        expected = {name for each in FRAMEWORKS.values() for name in ROWS[each.kind].names(each.name)}
        expected |= {"by-exec-launcher", "by-exec-worker-0", "by-ssh-worker-0", "di-coordinator"}

        def complete() -> bool:
            pods = self.world.pods()
            pending = [name for name, pod in pods.items() if pod["status"].get("phase") == "Pending"]
            for name in pending:
                self._run(name, pods[name]["spec"]["containers"][0]["name"])
            launched = [job["metadata"]["name"] for job in self.world.ask("GET", BATCH)["items"]]
            return set(pods) == expected and not pending and launched == ["by-ssh-launcher"]

        self.world.wait(complete, "all pods of all jobs")

    def wait_written(self) -> None:
        """Until all has been written that follows from that."""
        self.world.wait(self._counted, "the statuses of all jobs")
        self.world.wait(self._listed, "the workers in the files of MPIJobs")

    def _run(self, name: str, main: str) -> None:
        status = container({"running": {"startedAt": "2024-01-01T00:00:00Z"}})
        self.world.set_pod(name, {"phase": "Running", "containerStatuses": [{**status, "name": main}]})

    def _listed(self) -> bool:
        """Whether the hosts of MPIJobs are written, for which the operator takes its time."""
        maps = {item["metadata"]["name"]: item["data"] for item in self.world.ask("GET", f"{CORE}/configmaps")["items"]}
        return all(f"{name}-worker-0" in maps[f"{name}-config"]["discover_hosts.sh"] for name in ("by-exec", "by-ssh"))

    def _counted(self) -> bool:
        """Whether every status counts every pod."""
        pods = [pod["metadata"]["ownerReferences"][0]["uid"] for pod in self.world.pods().values()]
        for path in self._jobs:
            for job in self.world.ask("GET", path)["items"]:
                status = job.get("status", {})
                active = sum(each.get("active", 0) for each in status.get("replicaStatuses", {}).values())
                if path == DIJOBS:
                    active = int(status.get("phase") == "Running")
                if active != pods.count(job["metadata"]["uid"]):
                    return False
        return True

    def state(self) -> dict[str, Any]:
        """Path of each object -> its UID and the version that the last write to it made."""
        found: dict[str, Any] = {}
        for path in (*self._jobs, *PARTS):
            for item in self.world.ask("GET", path)["items"]:
                metadata = item["metadata"]
                found[f"{path}/{metadata['name']}"] = metadata["uid"], metadata["resourceVersion"]
        return found

    def check_untouched(self, before: dict[str, Any], by: str) -> None:
        """No object was written, made or removed since."""
        now = self.state()
        changed = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
        assert not changed, (by, [(path, self.world.try_to("GET", path).body) for path in changed])

    def wait_idle(self, operator: Operator) -> None:
        """Until no queue of the operator has a key, and none is worked on."""
        seen: list[Any] = []

        def idle() -> bool:
            seen.append(self.state())
            return is_idle(operator) and len(seen) > 2 and seen[-1] == seen[-2] == seen[-3]

        self.world.wait(idle, "an idle operator")

    def replace_pod(self) -> None:
        """A pod that is deleted is replaced: watches, writes and the owner's UID are those of before."""
        name = "pytorch-worker-0"
        uid = self.world.pods()[name]["metadata"]["uid"]
        self.world.reap_pod(name)
        self.world.wait_successor(name, uid)
        self.wait_complete()

    def wait_served(self, api: Api) -> None:
        """Until an API server that has started serves all of this; of CRDs it is later than ready."""
        paths = [path.format(namespace=self.world.namespace) for path in (*self._jobs, *PARTS)]
        self.world.wait(lambda: all(api("GET", path).status == HTTPStatus.OK for path in paths), "all resources")

    def wait_watches(self, operator: Operator, before: Counter[str]) -> None:
        """Until each watch of the operator has ended and begun again since `before`, and nothing follows from that."""
        self.world.wait(lambda: not before.keys() - (watches(operator) - before).keys(), "new watches")
        self.wait_idle(operator)


def complete_fleet(api: Api, operator: Operator, namespace: str) -> Fleet:
    """Jobs of every kind that have all their pods, and of which everything is written."""
    fleet = Fleet(api, namespace)
    fleet.create()
    fleet.wait_complete()
    fleet.wait_written()
    fleet.wait_idle(operator)
    return fleet


def watches(operator: Operator) -> Counter[str]:
    """How often each watch of the operator has ended, by the resource; all are 1 at first."""
    text = fetch(operator.metrics_url)[1]
    found = Counter(re.findall(r'^trainop_informer_objects\{resource="(\S+?)"\}', text, re.MULTILINE))
    pattern = r'^trainop_informer_(?:watch_restarts|relists)_total\{.*resource="(\S+?)"\} (\S+)$'
    for resource, count in re.findall(pattern, text, re.MULTILINE):
        found[resource] += int(float(count))
    return found


def writes(operator: Operator) -> int:
    """The requests of the operator that may write, with those that were refused or failed."""
    text = fetch(operator.metrics_url)[1]
    pattern = r'^rest_client_requests_total\{.*method="(?:POST|PUT|PATCH|DELETE)"\} (\S+)$'
    return sum(int(float(count)) for count in re.findall(pattern, text, re.MULTILINE))


def is_idle(operator: Operator) -> bool:
    text = fetch(operator.metrics_url)[1]
    depths = re.findall(r"^(?:workqueue_depth|workqueue_unfinished_work_seconds)\{.*\} (\S+)$", text, re.MULTILINE)
    return bool(depths) and not any(map(float, depths))
