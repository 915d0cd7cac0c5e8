"""The building blocks below `Operator`, `Controller`, `Cache` and `Client`, which most programs never name.

They are for programs that wire a `Manager` by hand, replace a part (a transport, a rate limiter, metrics), annotate
what a callback receives, or imitate an API server. `lowlevel.pyi` lists them; docs/runtime.md says what each is for.
"""

from __future__ import annotations

from trainop.runtime.exports import public_names

_MODULES, __getattr__ = public_names(globals())
__all__ = sorted(_MODULES)  # noqa: PLE0605  # the stub is the list
