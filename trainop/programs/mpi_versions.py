"""The version in which MPIJobs are watched: the CRD of a Go operator serves one version, that of trainop both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from trainop.controllers.crd_check import INSTALL
from trainop.errors import StartError
from trainop.kinds.mpi.transport import MPI_V1, MPI_V2
from trainop.programs.settings import Settings
from trainop.runtime import Client, Clock, Resource, SystemClock
from trainop.runtime.lowlevel import Discovery

INTERVAL = 60.0
"""Seconds between two looks at the versions that are served."""

log = structlog.get_logger(__name__)


async def adapt_to_crds(settings: Settings, client: Client) -> Settings:
    """The settings with the version of MPIJobs that the API server serves. Raises `StartError` if it serves none of
    the required resources. Other failures are only logged."""
    discovery = Discovery(client, SystemClock())
    try:
        served = {each: await discovery.serves(each) for each in (MPI_V1, MPI_V2, *settings.required)}
    except (ConnectionError, TimeoutError) as error:
        log.warning("discovery failed", error=str(error))
        return settings
    if settings.required and not any(served[each] for each in settings.required):
        raise StartError(f"the CRD {settings.required[0]} does not exist; install it first: {INSTALL}")
    version = _choose_version(served) or settings.options.mpi_version
    return replace(settings, options=replace(settings.options, mpi_version=version))


def _choose_version(served: Mapping[Resource, bool]) -> str | None:
    """The version in which MPIJobs are watched: v1 unless only v2beta1 is served. None: neither is."""
    if served[MPI_V1]:
        return MPI_V1.version
    return MPI_V2.version if served[MPI_V2] else None


class MpiVersionWatch:
    """Stops the process if the version in which MPIJobs have to be watched changes, as it does when the CRD of a Go
    operator is replaced. The restarted process watches the other version."""

    def __init__(self, settings: Settings, client: Client, clock: Clock, stop: Callable[[], None]) -> None:
        self._settings = settings
        self._discovery = Discovery(client, clock)
        self._clock = clock
        self._stop = stop

    async def run(self) -> None:
        """Never returns."""
        watched = self._settings.options.mpi_version
        while True:
            await self._clock.sleep(INTERVAL)
            try:
                served = {each: await self._discovery.serves(each) for each in (MPI_V1, MPI_V2)}
            except (ConnectionError, TimeoutError):
                continue  # the informers report it
            if _choose_version(served) not in {None, watched}:
                log.warning("another version of MPIJobs is served, restarting", watched=watched)
                self._stop()
