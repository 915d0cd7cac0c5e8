"""What every part of the API server works with: the store, the kinds, the clock, the dice."""

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
    """Randomness comes from `rng` alone, so that a run under virtual time repeats itself exactly."""

    store: Store
    registry: Registry
    clock: Clock
    rng: random.Random
    tokens: set[str] = field(default_factory=set)
    """Bearer tokens that are accepted on sockets."""
    lent: dict[str, float] = field(default_factory=dict)
    """Tokens with an end: when that is, by the monotonic clock."""

    def lend_token(self, token: str, seconds: float) -> None:
        """Accept a token for a time; those whose time is over are forgotten."""
        now = self.clock.monotonic()
        for old in [old for old, end in self.lent.items() if end <= now]:
            del self.lent[old]
        self.lent[token] = now + seconds

    def now(self) -> str:
        """`metav1.Time` of this moment."""
        return timestamp(self.clock.now())

    def knows_token(self, token: str) -> bool:
        """Compared in constant time."""
        given, known = token.encode(), False
        now = self.clock.monotonic()
        for held in (*self.tokens, *(lent for lent, end in self.lent.items() if end > now)):
            known = hmac.compare_digest(given, held.encode()) or known
        return known

    def new_uid(self) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def random_suffix(self) -> str:
        """What `generateName` appends (apiserver `pkg/storage/names/generate.go`)."""
        return "".join(self.rng.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
