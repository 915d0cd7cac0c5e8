"""`metadata.managedFields`: which field manager owns which field set of an object.

Source: apimachinery `pkg/util/managedfields/internal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainop.local.api.fields.field_sets import FieldSet, union
from trainop.runtime import Json

_MAX_UPDATE_MANAGERS = 10
_OLD_UPDATES_MANAGER = "ancient-changes"


@dataclass(frozen=True, slots=True, eq=False)
class Manager:
    """The identity of a field manager. `operation` is Apply or Update; for Apply, `api_version` is not part of it."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""

    @property
    def _identity(self) -> tuple[str, ...]:
        return (self.name, self.operation, self.subresource, "" if self.operation == "Apply" else self.api_version)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manager) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __str__(self) -> str:
        """The notation of conflict messages."""
        below = f' with subresource "{self.subresource}"' if self.subresource else ""
        return f'"{self.name}"{below}' + (f" using {self.api_version}" if self.operation == "Update" else "")


class ManagedFields:
    """The field sets of one object by manager. Field sets in `entries` are replaced, never mutated."""

    def __init__(self) -> None:
        self.entries: dict[Manager, FieldSet] = {}
        self._times: dict[Manager, str | None] = {}

    @classmethod
    def of(cls, item: Json) -> ManagedFields:
        """The managed fields of an object; entries with an unknown operation or fieldsType are ignored."""
        managers = cls()
        for entry in (item.get("metadata") or {}).get("managedFields") or ():
            if entry.get("operation") in {"Apply", "Update"} and entry.get("fieldsType") == "FieldsV1":
                manager = Manager(
                    str(entry.get("manager", "")),
                    entry["operation"],
                    str(entry.get("apiVersion", "")),
                    str(entry.get("subresource", "")),
                )
                managers.set_fields(manager, entry.get("fieldsV1") or None)
                managers._times[manager] = entry.get("time")
        return managers

    def fields(self, manager: Manager) -> FieldSet | None:
        """The fields of a manager; None if it has none."""
        return self.entries.get(manager)

    def time(self, manager: Manager) -> str | None:
        """The time of the last write by a manager (RFC 3339)."""
        return self._times.get(manager)

    def set_time(self, manager: Manager, time: str) -> None:
        """Set the time of the last write by a manager."""
        self._times[manager] = time

    def set_fields(self, manager: Manager, fields: FieldSet | None) -> None:
        """Replace the fields of a manager; None removes the manager."""
        self.entries.pop(manager, None)
        if fields is not None:
            self.entries[manager] = fields

    def cap_update_managers(self, api_version: str) -> None:
        """Merge the oldest Update managers beyond ten into one, which bounds the list (`capmanagers.go` upstream)."""
        update_managers = sorted(
            (manager for manager in self.entries if manager.operation == "Update"),
            key=lambda manager: self._times.get(manager) or "",
        )
        excess = len(update_managers) - _MAX_UPDATE_MANAGERS
        if excess <= 0:
            return
        bucket = Manager(_OLD_UPDATES_MANAGER, "Update", api_version)
        joined: FieldSet | None = None
        for manager in update_managers[: excess + 1]:
            joined = union(joined, self.entries.pop(manager))
            self._times[bucket] = self._times.get(manager)
        self.set_fields(bucket, joined)

    def written_to(self, item: Json) -> Json:
        """The object with these managed fields in its metadata; without managers, the field is absent."""
        metadata = {name: value for name, value in (item.get("metadata") or {}).items() if name != "managedFields"}
        if self.entries:
            metadata["managedFields"] = [self._entry(manager) for manager in sorted(self.entries, key=self._order)]
        return {**item, "metadata": metadata}

    def _order(self, manager: Manager) -> tuple[str, ...]:
        return (
            manager.operation,
            self._times.get(manager) or "",
            manager.name,
            manager.api_version,
            manager.subresource,
        )

    def _entry(self, manager: Manager) -> Json:
        entry: dict[str, Any] = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
        }
        if time := self._times.get(manager):
            entry["time"] = time
        entry |= {"fieldsType": "FieldsV1", "fieldsV1": self.entries[manager]}
        return entry | ({"subresource": manager.subresource} if manager.subresource else {})
