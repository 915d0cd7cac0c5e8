"""Rate limiters for retries: exponential back-off per key, and a token bucket shared by all keys.

`RetryLimiter` combines both and is the default of `WorkQueue`. `TokenBucket` also limits API requests.
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from trainop.runtime.clock import Clock

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class RateLimiter(Protocol[K_contra]):
    """Computes retry delays from the consecutive failures of each key (client-go `TypedRateLimiter`)."""

    def delay(self, key: K_contra) -> float:
        """Counts one more failure and returns the seconds until the next try."""
        ...

    def retries(self, key: K_contra) -> int:
        """Failures since the last `forget`."""
        ...

    def forget(self, key: K_contra) -> None:
        """Resets the failures of the key, after a success."""
        ...


def exponential_delay(rng: random.Random, failures: int, *, base: float, cap: float, jitter: float = 0.1) -> float:
    """The seconds to wait after `failures` earlier failures: `base` · 2^failures, at most `cap`, times a random factor
    in 1 ± `jitter`."""
    exact = cap if failures >= 64 else min(cap, base * 2.0**failures)  # 2^64 is beyond any cap
    return exact * rng.uniform(1 - jitter, 1 + jitter)


class ExponentialLimiter(Generic[K]):
    """Exponential back-off per key: `base` · 2^(failures - 1) seconds, at most `cap`, times a random factor in
    1 ± `jitter` (client-go `ItemExponentialFailureRateLimiter`, which has no jitter). Keys that have not failed for
    `keep` seconds are dropped."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random | None = None,
        *,
        base: float = 0.005,
        cap: float = 1000.0,
        jitter: float = 0.1,
        keep: float = 7200.0,
    ) -> None:
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._base = base
        self._cap = cap
        self._jitter = jitter
        self._keep = keep
        self._failures: dict[K, tuple[int, float]] = {}
        self._swept = clock.monotonic()

    def delay(self, key: K) -> float:
        self._sweep()
        failures = self.retries(key)
        # Reinserted at the end, so that the oldest keys are first for the sweep.
        self._failures.pop(key, None)
        self._failures[key] = (failures + 1, self._clock.monotonic())
        return exponential_delay(self._rng, failures, base=self._base, cap=self._cap, jitter=self._jitter)

    def retries(self, key: K) -> int:
        return self._failures.get(key, (0, 0.0))[0]

    def forget(self, key: K) -> None:
        self._failures.pop(key, None)

    def __len__(self) -> int:
        return len(self._failures)

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        if now - self._swept < self._keep / 8:
            return
        self._swept = now
        while self._failures:
            key, (_, seen) = next(iter(self._failures.items()))
            if now - seen < self._keep:
                return
            del self._failures[key]


class TokenBucket:
    """A token bucket with `rate` tokens per second and at most `burst` stored tokens. Serves callers in order. Raises
    `ValueError` for a rate of 0 or less, or a burst below 1."""

    def __init__(self, clock: Clock, rate: float, burst: int) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"a bucket needs a rate above 0 and a burst of at least 1, not {rate}, {burst}")
        self._clock = clock
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at = clock.monotonic()

    def reserve(self) -> float:
        """Takes a token, possibly in advance; returns the seconds until it is available."""
        self._refill()
        self._tokens -= 1
        return max(0.0, -self._tokens / self._rate)

    async def acquire(self) -> None:
        """Takes a token and waits until it is available."""
        delay = self.reserve()
        if delay > 0:
            await self._clock.sleep(delay)

    def take(self) -> bool:
        """Takes a token if one is available now; false otherwise."""
        self._refill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _refill(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now


class RetryLimiter(Generic[K]):
    """The longer of the key's back-off and the delay of a token bucket shared by all keys, so that ten thousand failing
    keys do not retry at once (client-go `DefaultTypedControllerRateLimiter`). `rate` is in tokens per second."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random | None = None,
        *,
        rate: float = 10.0,
        burst: int = 100,
        cap: float = 1000.0,
    ) -> None:
        self._backoff: ExponentialLimiter[K] = ExponentialLimiter(clock, rng, cap=cap)
        self._bucket = TokenBucket(clock, rate, burst)

    def delay(self, key: K) -> float:
        return max(self._backoff.delay(key), self._bucket.reserve())

    def retries(self, key: K) -> int:
        return self._backoff.retries(key)

    def forget(self, key: K) -> None:
        self._backoff.forget(key)
