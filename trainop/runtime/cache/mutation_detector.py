"""Cache mutation detector (client-go `tools/cache/mutation_detector.go`).

Cached objects are shared by all controllers and must not be mutated. Only for tests, because the detector encodes every
object twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from trainop.runtime.cache.store import Index, Store
from trainop.runtime.objects.metadata import HasMetadata, Key, Unstructured

T = TypeVar("T", bound=HasMetadata)

_encode = msgspec.json.Encoder().encode


class MutationError(AssertionError):
    """A cached object differs from what the API server sent."""


class GuardedStore(Store[T]):
    """A `Store` that compares each object with its original encoding when it is replaced or removed, and all objects
    when `verify` is called."""

    def __init__(
        self, indices: Mapping[str, Index[T]] | None = None, *, index_failed: Callable[[], None] = lambda: None
    ) -> None:
        self._received: dict[Key, bytes] = {}
        super().__init__(indices, index_failed=index_failed)

    def verify(self) -> None:
        """Raises `MutationError` if any object has changed since it was stored."""
        for obj in self.list():
            self._check(obj.metadata.key, obj)

    def _set(self, key: Key, old: T | None, new: T | None) -> None:
        if old is not None and key in self:
            self._check(key, old)
        super()._set(key, old, new)
        if new is None:
            del self._received[key]
        else:
            self._received[key] = _content(new)

    def _check(self, key: Key, obj: T) -> None:
        received, now = self._received[key], _content(obj)
        if received != now:
            raise MutationError(f"{key} was mutated in the cache: {received.decode()} became {now.decode()}")


def _content(obj: HasMetadata) -> bytes:
    return _encode(obj.raw if isinstance(obj, Unstructured) else obj)
