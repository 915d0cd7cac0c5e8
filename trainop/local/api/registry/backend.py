"""The state that all parts of the API server share: store, registry, clock, random generator, bearer tokens."""

from __future__ import annotations

import hmac
import random
import uuid
from dataclasses import dataclass, field

from trainop.local.api.registry.kinds import Registry
from trainop.local.api.storage.versioned_store import Store
from trainop.runtime.clock import Clock, timestamp


@dataclass(frozen=True)
class Backend:
    """All randomness comes from `rng`, so that a seeded run under virtual time is reproducible."""

    store: Store
    registry: Registry
    clock: Clock
    rng: random.Random
    tokens: set[str] = field(default_factory=set)
    """Bearer tokens without expiry."""
    expiring_tokens: dict[str, float] = field(default_factory=dict)
    """Bearer tokens with their expiry on the monotonic clock."""

    def add_expiring_token(self, token: str, seconds: float) -> None:
        """Accept a bearer token for this many seconds; also drops expired tokens."""
        now = self.clock.monotonic()
        for old in [old for old, expiry in self.expiring_tokens.items() if expiry <= now]:
            del self.expiring_tokens[old]
        self.expiring_tokens[token] = now + seconds

    def now(self) -> str:
        """The current time as `metav1.Time`."""
        return timestamp(self.clock.now())

    def accepts_token(self, token: str) -> bool:
        """Whether a bearer token is valid; compared in constant time."""
        given, known = token.encode(), False
        now = self.clock.monotonic()
        for held in (*self.tokens, *(temporary for temporary, expiry in self.expiring_tokens.items() if expiry > now)):
            known = hmac.compare_digest(given, held.encode()) or known
        return known

    def new_uid(self) -> str:
        """A random UID (UUID version 4) from `rng`."""
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def random_suffix(self) -> str:
        """The suffix for `generateName` (apiserver `pkg/storage/names/generate.go`)."""
        return "".join(self.rng.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
