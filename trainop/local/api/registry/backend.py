"""The state that all parts of the API server share: store, registry, clock, random generator, bearer tokens."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field

from trainop.local.api.registry.jwt import Signer
from trainop.local.api.registry.kinds import Registry
from trainop.local.api.storage.versioned_store import Store
from trainop.runtime import Clock
from trainop.runtime.lowlevel import timestamp


@dataclass(frozen=True)
class Backend:
    """All randomness but keys comes from `rng`, so that a seeded run under virtual time is reproducible."""

    store: Store
    registry: Registry
    clock: Clock
    rng: random.Random
    signer: Signer
    """Of the tokens of service accounts."""
    tokens: set[str] = field(default_factory=set)
    """Bearer tokens of the administrator, without expiry."""

    def now(self) -> str:
        """The current time as `metav1.Time`."""
        return timestamp(self.clock.now())

    def new_uid(self) -> str:
        """A random UID (UUID version 4) from `rng`."""
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
