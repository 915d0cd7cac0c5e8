"""Interface between a reflector, which reads objects, and an informer, which stores them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypeVar

from trainop.runtime.cache.scope import Scope
from trainop.runtime.errors import DecodeError
from trainop.runtime.objects.metadata import HasMetadata, Key

T_contra = TypeVar("T_contra", bound=HasMetadata, contravariant=True)


class Sink(Protocol[T_contra]):
    """Receives objects from a reflector. `listing`: the object comes from a list, which is authoritative even if its
    resourceVersion is older than the cached one."""

    def put(self, obj: T_contra, *, listing: bool, initial: bool) -> None:
        """The object exists in this version. `initial`: it is part of the reflector's first list."""
        ...

    def reject(self, key: Key, error: DecodeError, *, listing: bool) -> None:
        """The object exists but cannot be decoded."""
        ...

    def remove(self, obj: T_contra) -> None:
        """The object was deleted; `obj` is its final state."""
        ...

    def forget(self, key: Key) -> None:
        """The object was deleted, and its final state cannot be decoded."""
        ...

    def listed(self, keep: Collection[Key], scope: Scope) -> None:
        """A list is complete: within `scope`, only the objects in `keep` exist."""
        ...

    def watching(self, scope: Scope) -> None:
        """The server has accepted a watch of `scope`."""
        ...

    def denied(self, scope: Scope) -> None:
        """The server has denied a list or watch of `scope`; the next attempt follows."""
        ...
