"""A toy cluster around the pure engine: it applies plans, and the test sets the states of pods."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tests.engine.builders import NOW, group_created, group_deleted, group_updated, manifest_of, service_created
from trainop.engine.actions import (
    Action,
    Adopt,
    Count,
    DeleteJob,
    Ensure,
    Event,
    Patch,
    Plan,
    Release,
    Remove,
)
from trainop.engine.framework import Framework
from trainop.engine.kind import kind_of
from trainop.engine.plan import plan
from trainop.engine.restart_history import RESTARTS
from trainop.engine.seen import Options, Pod, PodGroup, SeenGang, Service, Snapshot
from trainop.engine.status import format_time
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import PODS, SERVICES, Json, Resource, Unstructured, owner_reference

OF_GROUPS = (group_created, group_updated, group_deleted)


class World:
    """One job, its pods and services; deleted pods stay, terminating, until `reap`."""

    def __init__(self, job: Json, *, framework: Framework = PYTORCH, options: Options | None = None) -> None:
        self.job: Json | None = copy.deepcopy(job)
        self.framework = framework
        self.options = options or Options()
        self.now: datetime = NOW
        self.pods: dict[str, Json] = {}
        self.services: dict[str, Json] = {}
        self.companions: dict[Resource, dict[str, Json]] = {kind.resource: {} for kind in framework.companion_kinds}
        if self.options.gang is not None and self.options.gang.workloads is not None:
            self.companions[self.options.gang.workloads] = {}
        self.group: Json | None = None
        """The PodGroup with the name of the job."""
        self.gang = SeenGang()
        """What else gang scheduling depends on."""
        self.taken: frozenset[tuple[str, str]] = frozenset()
        """Kinds and names that objects of others have, as creates have shown."""
        self.events: list[Event] = []
        self.counts: dict[str, int] = {}
        self.created_pods = 0
        self._told: dict[str, str] = {}
        self._uids = 0

    # Looking ----------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        assert self.job is not None
        return Snapshot(
            Unstructured(self.job),
            tuple(msgspec.convert(pod, Pod) for pod in self.pods.values()),
            tuple(msgspec.convert(service, Service) for service in self.services.values()),
            self.now,
            self.options,
            self._companions(),
            gang=self.gang,
            taken=self.taken,
        )

    def _companions(self) -> dict[Resource, Sequence[Any]]:
        found: dict[Resource, Sequence[Any]] = {
            resource: [Unstructured(raw) for raw in held.values()] for resource, held in self.companions.items()
        }
        if self.options.gang is not None and self.group is not None:
            found[self.options.gang.groups] = [msgspec.convert(self.group, PodGroup)]
        return found

    @property
    def raw(self) -> Json:
        """The stored job, which must exist."""
        assert self.job is not None
        return self.job

    @property
    def spec(self) -> Json:
        spec: Json = self.raw["spec"]
        return spec

    @property
    def status(self) -> Json:
        assert self.job is not None
        status: Json = self.job.get("status") or {}
        return status

    @property
    def conditions(self) -> list[tuple[str, str, str]]:
        entries = self.status.get("conditions") or []
        return [(entry["type"], entry["status"], entry["reason"]) for entry in entries]

    def is_true(self, type_: str) -> bool:
        return any(name == type_ and status == "True" for name, status, _ in self.conditions)

    def event_messages(self, reason: str) -> list[str]:
        return [event.message for event in self.events if event.reason == reason]

    def living(self) -> list[str]:
        return sorted(name for name, pod in self.pods.items() if "deletionTimestamp" not in pod["metadata"])

    # Passes -----------------------------------------------------------------------------------------------------------

    def step(self) -> Plan:
        """Make one plan and apply it completely."""
        made = plan(self.framework, self.snapshot())
        self.carry_out(made)
        return made

    def settle(self, *, most: int = 30) -> None:
        """Run passes until one changes nothing."""
        for _ in range(most):
            if self.job is None:
                return
            made = self.step()
            if made.status is None and not made.actions and not made.annotations and made.suspend is None:
                return
        raise AssertionError(f"not settled after {most} passes: {made}")

    def carry_out(self, made: Plan) -> None:
        assert self.job is not None
        annotations = self.job["metadata"].setdefault("annotations", {})
        for key, value in made.annotations.items():
            if value is None:
                annotations.pop(key, None)
            else:
                annotations[key] = value
        if made.status is not None:
            self.job["status"] = json.loads(json.dumps(made.status))
        for transition in made.transitions:
            if isinstance(transition, Event):
                self.events.append(transition)
            else:
                assert isinstance(transition, Count)
                self.counts[transition.counter] = self.counts.get(transition.counter, 0) + transition.by
        for notice in made.notices:
            if self._told.get(notice.identity) != notice.event.message:
                self._told[notice.identity] = notice.event.message
                self.events.append(notice.event)
        for action in made.actions:
            self._act(action)
        if made.suspend is not None:
            self.spec.setdefault("runPolicy", {})["suspend"] = made.suspend

    def _act(self, action: Action) -> None:
        match action:
            case Ensure(resource=resource) if resource == PODS:
                self._create(self.pods, manifest_of(action), {"status": {"phase": "Pending"}})
                self.created_pods += 1
            case Ensure(resource=resource) if service_created(action):
                self._create(self.services, manifest_of(action), {})
            case Remove(resource=resource) if resource == PODS:
                self._delete_pod(action)
            case Remove(resource=resource) if resource == SERVICES:
                assert self.services.pop(action.name)["metadata"]["uid"] == action.uid
            case Adopt(resource, name, uid):
                child = (self.pods if resource == PODS else self.services)[name]
                assert child["metadata"]["uid"] == uid
                child["metadata"]["ownerReferences"] = [self.owner()]
            case Release(resource, name, _):
                (self.pods if resource == PODS else self.services).pop(name)
            case Ensure() | Patch() | Remove() if any(is_it(action) for is_it in OF_GROUPS):
                self._write_group(action)
            case Ensure() | Remove():
                self._write_companion(action)
            case DeleteJob():
                self.job = None

    def _write_companion(self, action: Ensure | Remove) -> None:
        held = self.companions[action.resource]
        if isinstance(action, Remove):
            assert held.pop(action.name)["metadata"]["uid"] == action.uid
            return
        found = held.pop(action.name, None)
        assert action.uid == (found["metadata"]["uid"] if found else "")
        self._create(held, action.manifest, {})

    def _write_group(self, action: Ensure | Patch | Remove) -> None:
        if isinstance(action, Ensure):
            assert self.group is None
            groups: dict[str, Json] = {}
            self._create(groups, action.manifest, {})
            (self.group,) = groups.values()
            return
        assert self.group is not None
        assert self.group["metadata"]["name"] == action.name
        if isinstance(action, Patch):
            self.group["spec"] = merge_patch(self.group.get("spec", {}), action.body["spec"])
        else:
            assert self.group["metadata"]["uid"] == action.uid
            self.group = None

    def _delete_pod(self, action: Remove) -> None:
        assert self.pods[action.name]["metadata"]["uid"] == action.uid
        self.delete(action.name)
        if action.force:
            del self.pods[action.name]

    def owner(self) -> Json:
        assert self.job is not None
        metadata = self.job["metadata"]
        resource = self.framework.resource
        return owner_reference(resource.api_version, resource.kind, metadata["name"], metadata["uid"])

    def _create(self, store: dict[str, Json], manifest: Json, more: Json) -> None:
        made: Json = {**json.loads(json.dumps(manifest)), **more}
        name = made["metadata"]["name"]
        assert name not in store, f"{name} already exists"
        self._uids += 1
        made["metadata"] |= {"uid": f"uid-{self._uids}", "creationTimestamp": format_time(self.now)}
        store[name] = made

    # What happens to pods ---------------------------------------------------------------------------------------------

    def set_pod(self, name: str, phase: str, **status: Any) -> None:
        self.pods[name]["status"] = {"phase": phase, **status}

    def run(self, *pods: str) -> None:
        """Set these pods, or all pending ones, to Running."""
        for name in pods or [name for name, pod in self.pods.items() if pod["status"]["phase"] == "Pending"]:
            state = {"name": self.framework.container, "restartCount": 0, "state": {}}
            self.set_pod(name, "Running", containerStatuses=[state])

    def end(self, name: str, code: int, **status: Any) -> None:
        """Terminate the pod's container with `code`."""
        how = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": format_time(self.now)}
        state = {"name": self.framework.container, "state": {"terminated": how}}
        self.set_pod(name, "Failed" if code else "Succeeded", containerStatuses=[state], **status)

    def delete(self, name: str) -> None:
        metadata = self.pods[name]["metadata"]
        if "deletionTimestamp" not in metadata:
            metadata["deletionTimestamp"] = format_time(self.now + timedelta(seconds=30))
            metadata["deletionGracePeriodSeconds"] = 30

    def reap(self) -> None:
        """Remove terminating pods."""
        self.pods = {name: pod for name, pod in self.pods.items() if "deletionTimestamp" not in pod["metadata"]}

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def merge_patch(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


class DecidingWorld(World):
    """Decides as the operator does, with what all kinds have in common."""

    def step(self) -> Plan:
        made = kind_of(self.framework).decide(self.snapshot())
        self.carry_out(made)
        return made

    @property
    def history(self) -> Json:
        found: Json = json.loads(self.raw["metadata"]["annotations"].get(RESTARTS, "{}"))
        return found
