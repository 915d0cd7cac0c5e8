"""An asyncio library for Kubernetes controllers, modelled on controller-runtime. It is independent of job kinds.

`Operator` builds and connects a whole program. Main classes in the order of the data flow: `HttpTransport`, `Client`,
`Informer`, `Cache`, `Controller`, `Manager`; in addition `Expectations`, `Recorder`, `Metrics`,
`serve_webhooks`. `trainop.runtime.lowlevel` has the names that most programs do not need.

`__init__.pyi` lists the public names; each is loaded on first use. `docs/runtime.md` describes how they work together,
and the guarantees and limitations.
"""

from __future__ import annotations

from trainop.runtime.exports import public_names

_MODULES, __getattr__ = public_names(globals())
__all__ = sorted(_MODULES)  # noqa: PLE0605  # the stub is the list
