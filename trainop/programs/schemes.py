"""The kinds of jobs, as `--enable-scheme` names them. A new kind is registered here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from trainop.engine.framework import Framework
from trainop.engine.kind import Kind, kind_of
from trainop.engine.schema.crd import crd
from trainop.engine.seen import Options
from trainop.errors import UnknownSchemeError
from trainop.kinds.jax import JAX
from trainop.kinds.mpi.crd import mpi_crd
from trainop.kinds.mpi.kinds import mpi_kinds
from trainop.kinds.mxnet import MXNET
from trainop.kinds.paddle import PADDLE
from trainop.kinds.pytorch import PYTORCH
from trainop.kinds.tensorflow import TENSORFLOW
from trainop.kinds.xgboost import XGBOOST
from trainop.runtime import Json


def _only_kind_of(framework: Framework, options: Options) -> Sequence[Kind]:
    return (kind_of(framework, options),)


FRAMEWORKS: dict[str, Framework] = {
    framework.kind: framework
    for framework in (
        TENSORFLOW,
        PYTORCH,
        MXNET,
        XGBOOST,
        PADDLE,
        JAX,
    )
}
"""The kinds that are a `Framework`, by name."""


def _dijob_kinds(_options: Options) -> Sequence[Kind]:
    """Imported only if its scheme is enabled."""
    from trainop.kinds.dijob.kind import DIJOB  # noqa: PLC0415  # saves memory

    return (DIJOB,)


KINDS: dict[str, Callable[[Options], Sequence[Kind]]] = {
    **{name: functools.partial(_only_kind_of, framework) for name, framework in FRAMEWORKS.items()},
    "MPIJob": mpi_kinds,
    "DIJob": _dijob_kinds,
}
"""What `--enable-scheme` may name: scheme -> its kinds, each with a controller of its own."""

TRAIN_JOBS = "TrainJob"
"""A further scheme, enabled only if it is named. It has no kind: its jobs become jobs of the other kinds."""


def crds() -> list[Json]:
    """The CRDs of all kinds."""
    from trainop.kinds.dijob.crd import aggregator_config_crd, dijob_crd  # noqa: PLC0415  # not needed to run

    made = (crd(framework) for framework in FRAMEWORKS.values())
    return [*made, mpi_crd(), dijob_crd(), aggregator_config_crd()]


def all_kinds(options: Options | None = None) -> list[Kind]:
    """The kinds of all schemes. A resource that has several controllers, or several versions, has several kinds."""
    return [kind for kinds in KINDS.values() for kind in kinds(options or Options())]


def kinds_with_webhooks(options: Options | None = None) -> list[Kind]:
    """The kinds whose webhooks the operator serves, enabled or not: a cluster may have one webhook configuration for
    all kinds. Those of DIJobs have configurations of their own, and a process of their own serves them."""
    schemes = (kinds for scheme, kinds in KINDS.items() if scheme != "DIJob")
    return [kind for kinds in schemes for kind in kinds(options or Options())]


def enabled_schemes(schemes: Iterable[str]) -> list[str]:
    """The keys of `KINDS` that `--enable-scheme` names, ignoring case and duplicates; all if it names none of them.

    Raises `UnknownSchemeError`.
    """
    known = {kind.lower(): kind for kind in KINDS}
    chosen: dict[str, str] = {}
    for scheme in schemes:
        name = scheme.lower()
        if name == TRAIN_JOBS.lower():
            continue
        if name not in known:
            raise UnknownSchemeError(f"scheme {name} is not supported yet")
        chosen[name] = known[name]
    return list((chosen or known).values())


def runs_train_jobs(schemes: Iterable[str]) -> bool:
    """Whether `--enable-scheme` names the scheme of TrainJobs."""
    return TRAIN_JOBS.lower() in {scheme.lower() for scheme in schemes}
