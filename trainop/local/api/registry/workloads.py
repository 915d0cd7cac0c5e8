"""Workloads. Those without a controller here, such as Deployments, are stored, defaulted, validated, never acted on.

Users would expect an effect, so that each of their writes returns a warning and each new object gets one Event.
Sources: kubernetes `pkg/apis/apps/v1/defaults.go`, `pkg/apis/batch/v1/defaults.go`, and
`pkg/registry/batch/job/strategy.go`.
"""

from __future__ import annotations

from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.podspec import default_pod_spec, validate_pod_spec
from trainop.local.api.registry.simple_kinds import StoredOnlyStrategy
from trainop.local.api.schema.field_errors import from_message, invalid, required
from trainop.local.api.storage.versioned_store import Change, Table
from trainop.runtime import EVENTS, Json
from trainop.runtime.lowlevel import FieldError

_TRACKING = "batch.kubernetes.io/"


class NoControllerStrategy(StoredOnlyStrategy):
    """A kind on which users expect a controller to act, and none does."""

    def __init__(self, *, generation: bool = False) -> None:
        super().__init__(generation=generation, status=True)

    def warnings(self, value: Json) -> list[str]:
        return [no_controller_message(value)]


class DeploymentStrategy(NoControllerStrategy):
    """Deployments."""

    def __init__(self) -> None:
        super().__init__(generation=True)

    def default(self, value: Json) -> None:
        spec = value.setdefault("spec", {})
        spec.setdefault("replicas", 1)
        strategy = spec.setdefault("strategy", {})
        if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
            rolling = strategy.setdefault("rollingUpdate", {})
            rolling.setdefault("maxUnavailable", "25%")
            rolling.setdefault("maxSurge", "25%")
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault("progressDeadlineSeconds", 600)
        default_pod_spec(spec.setdefault("template", {}).setdefault("spec", {}))

    def validate(self, value: Json) -> list[FieldError]:
        spec = value["spec"]
        selector, template = spec.get("selector"), spec["template"]
        labels = (template.get("metadata") or {}).get("labels") or {}
        errors: list[FieldError] = []
        if not selector:
            errors.append(required("spec.selector"))
        elif not (selector.get("matchLabels") or {}).items() <= labels.items():
            detail = "`selector` does not match template `labels`"
            errors.append(invalid("spec.template.metadata.labels", labels, detail))
        return errors + validate_pod_spec(template["spec"], "spec.template.spec")


class JobStrategy(StoredOnlyStrategy):
    """Jobs of `batch/v1`, with the generated selector and pod labels. `local/job_controller.py` acts on them."""

    def __init__(self) -> None:
        super().__init__(generation=True, status=True)

    def warnings(self, value: Json) -> list[str]:
        indexed = value["spec"].get("completionMode") == "Indexed"
        return ["this cluster has no controller for Jobs with completionMode Indexed"] if indexed else []

    def default(self, value: Json) -> None:
        spec = value.setdefault("spec", {})
        if "completions" not in spec and "parallelism" not in spec:
            spec["completions"] = 1
        spec.setdefault("parallelism", 1)
        spec.setdefault("backoffLimit", 2**31 - 1 if "backoffLimitPerIndex" in spec else 6)
        spec.setdefault("completionMode", "NonIndexed")
        spec.setdefault("suspend", False)
        spec.setdefault("podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
        spec.setdefault("manualSelector", False)
        default_pod_spec(spec.setdefault("template", {}).setdefault("spec", {}))

    def prepare_create(self, value: Json) -> None:
        spec, metadata = value["spec"], value["metadata"]
        if spec.get("manualSelector"):
            return
        template = spec["template"].setdefault("metadata", {})
        own = {"controller-uid": metadata["uid"], "job-name": metadata["name"]}
        own |= {f"{_TRACKING}{name}": text for name, text in own.items()}
        template["labels"] = {**(template.get("labels") or {}), **own}
        spec.setdefault("selector", {"matchLabels": {f"{_TRACKING}controller-uid": metadata["uid"]}})

    def validate(self, value: Json) -> list[FieldError]:
        spec = value["spec"]["template"]["spec"]
        errors = validate_pod_spec(spec, "spec.template.spec")
        if spec["restartPolicy"] == "Always":
            detail = 'Unsupported value: "Always": supported values: "OnFailure", "Never"'
            errors.append(from_message("spec.template.spec.restartPolicy", "FieldValueNotSupported", detail))
        return errors


def no_controller_message(value: Json) -> str:
    """The text of the warning and of the Event for an object without a controller."""
    return f"this cluster has no controller for objects of kind {value['kind']}: it runs pods and training jobs"


class NoControllerEvents:
    """A listener of the store that creates one Event for each new object of a kind without a controller."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        kinds = (kind for kind in backend.registry if isinstance(kind.strategy, NoControllerStrategy))
        self._tables = frozenset(kind.table for kind in kinds)

    def __call__(self, table: Table, change: Change) -> None:
        if change.new is None or change.old is not None or table.name not in self._tables:
            return
        value, now = change.new.value, self._backend.now()
        namespace, name = change.key
        about = {key: value["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
        event_name = f"{name}.{change.version:x}"
        event: Json = {
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {
                "name": event_name,
                "namespace": namespace,
                "uid": self._backend.new_uid(),
                "creationTimestamp": now,
            },
            "involvedObject": {"kind": value["kind"], "apiVersion": value["apiVersion"], **about},
            "reason": "NothingActsOnIt",
            "message": no_controller_message(value),
            "source": {"component": "trainop-cluster"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "type": "Warning",
            "eventTime": None,
            "reportingComponent": "trainop-cluster",
            "reportingInstance": "",
        }
        self._backend.store.put(EVENTS.plural, (namespace, event_name), event)
