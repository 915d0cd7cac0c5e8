"""One Lease as a replica knows it: the record last observed, checked, and when it changed and was renewed."""

from __future__ import annotations

from typing import Annotated

import msgspec

from trainop.runtime.objects.metadata import Json

MAX_INT32 = 2**31 - 1

_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]


class _Metadata(msgspec.Struct, rename="camel"):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    resource_version: Annotated[str, msgspec.Meta(min_length=1)]


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: _Count | None = None
    lease_transitions: _Count | None = None


class _Lease(msgspec.Struct):
    """The fields that are validated in each response."""

    metadata: _Metadata
    spec: _Spec | None = None


class Lock:
    """The local state of one Lease.

    As in client-go, expiry is measured from the local time at which a change of the record was observed, because the
    clocks of other replicas cannot be trusted.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lease: Json | None = None
        self.changed_at = 0.0
        self.renewed_at: float | None = None
        """Monotonic time at which the last successful renewal was sent; None if the Lease is not held."""

    @property
    def held(self) -> bool:
        return self.renewed_at is not None

    @property
    def vacant(self) -> bool:
        """Held, but the observed record was deleted or has no holder: another replica may acquire it at any time."""
        return self.held and not self.holder

    @property
    def spec(self) -> Json:
        return (self.lease or {}).get("spec") or {}

    @property
    def holder(self) -> str:
        return self.spec.get("holderIdentity") or ""

    def observe(self, lease: Json, now: float) -> None:
        """Records a response. Raises `ConnectionError` if it is not a valid record of this Lease."""
        try:
            named = msgspec.convert(lease, _Lease).metadata.name
        except msgspec.ValidationError as error:
            raise ConnectionError(f"the response is not a Lease: {error}") from error
        if named != self.name:
            raise ConnectionError(f"the response is about another Lease: {named[:64]!r}")
        if self.lease is None or (lease.get("spec") or {}) != self.spec:
            self.changed_at = now
        self.lease = lease

    def expired(self, now: float) -> bool:
        return now >= self.changed_at + float(self.spec.get("leaseDurationSeconds") or 0)
