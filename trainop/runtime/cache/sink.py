"""Where a reflector puts what it reads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypeVar

from trainop.runtime.cache.scope import Scope
from trainop.runtime.errors import DecodeError
from trainop.runtime.objects.metadata import HasMetadata, Key

T_contra = TypeVar("T_contra", bound=HasMetadata, contravariant=True)


class Sink(Protocol[T_contra]):
    """Where objects go. `listing`: the object is part of a list, which is true whatever was known before."""

    def put(self, obj: T_contra, *, listing: bool, initial: bool) -> None: ...
    def reject(self, key: Key, error: DecodeError, *, listing: bool) -> None:
        """The object of this key exists and cannot be decoded."""
        ...

    def remove(self, obj: T_contra) -> None: ...
    def forget(self, key: Key) -> None:
        """An object that cannot be decoded was deleted."""
        ...

    def listed(self, keep: Collection[Key], scope: Scope) -> None:
        """A list is complete: nothing but `keep` exists in what `scope` covers."""
        ...
