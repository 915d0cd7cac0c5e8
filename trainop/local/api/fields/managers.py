"""The owners of an object's fields: `metadata.managedFields`, read and written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainop.local.api.fields.fields import Fields, union
from trainop.runtime.objects.metadata import Json

_MOST_UPDATERS = 10
_ANCIENT = "ancient-changes"


@dataclass(frozen=True, slots=True, eq=False)
class Manager:
    """Who wrote, and how; one who applies is the same whatever version of the API was used."""

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
        """As conflicts name it."""
        below = f' with subresource "{self.subresource}"' if self.subresource else ""
        return f'"{self.name}"{below}' + (f" using {self.api_version}" if self.operation == "Update" else "")


class Managers:
    """Who owns what of one object; `entries` are never changed in place."""

    def __init__(self) -> None:
        self.entries: dict[Manager, Fields] = {}
        self._times: dict[Manager, str | None] = {}

    @classmethod
    def of(cls, item: Json) -> Managers:
        """The managers that the object names; those that cannot be read own nothing."""
        managers = cls()
        for entry in (item.get("metadata") or {}).get("managedFields") or ():
            if entry.get("operation") in {"Apply", "Update"} and entry.get("fieldsType") == "FieldsV1":
                who = Manager(
                    str(entry.get("manager", "")),
                    entry["operation"],
                    str(entry.get("apiVersion", "")),
                    str(entry.get("subresource", "")),
                )
                managers.set_fields(who, entry.get("fieldsV1") or None)
                managers._times[who] = entry.get("time")
        return managers

    def fields(self, who: Manager) -> Fields | None:
        return self.entries.get(who)

    def time(self, who: Manager) -> str | None:
        return self._times.get(who)

    def set_time(self, who: Manager, time: str) -> None:
        self._times[who] = time

    def set_fields(self, who: Manager, fields: Fields | None) -> None:
        """Let `who` own exactly these; who owns nothing is forgotten."""
        self.entries.pop(who, None)
        if fields is not None:
            self.entries[who] = fields

    def cap(self, api_version: str) -> None:
        """Join the oldest of more than ten updaters, as the API server does, so that the list cannot grow for ever."""
        updaters = sorted(
            (who for who in self.entries if who.operation == "Update"), key=lambda who: self._times.get(who) or ""
        )
        excess = len(updaters) - _MOST_UPDATERS
        if excess <= 0:
            return
        bucket = Manager(_ANCIENT, "Update", api_version)
        joined: Fields | None = None
        for who in updaters[: excess + 1]:
            joined = union(joined, self.entries.pop(who))
            self._times[bucket] = self._times.get(who)
        self.set_fields(bucket, joined)

    def written_to(self, item: Json) -> Json:
        """The object with these managers in its metadata; without any, the list is not there."""
        metadata = {name: value for name, value in (item.get("metadata") or {}).items() if name != "managedFields"}
        if self.entries:
            metadata["managedFields"] = [self._written(who) for who in sorted(self.entries, key=self._order)]
        return {**item, "metadata": metadata}

    def _order(self, who: Manager) -> tuple[str, ...]:
        return (who.operation, self._times.get(who) or "", who.name, who.api_version, who.subresource)

    def _written(self, who: Manager) -> Json:
        entry: dict[str, Any] = {"manager": who.name, "operation": who.operation, "apiVersion": who.api_version}
        if time := self._times.get(who):
            entry["time"] = time
        entry |= {"fieldsType": "FieldsV1", "fieldsV1": self.entries[who]}
        return entry | ({"subresource": who.subresource} if who.subresource else {})
