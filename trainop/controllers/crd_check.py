"""Reports kinds of jobs whose CRDs are not installed: they are an installation of their own, in no overlay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from trainop.runtime import Informer, Unstructured

INSTALL = "kubectl apply --server-side -k manifests/crds"
"""How the CRDs of this release are installed, from its files."""

log = structlog.get_logger(__name__)


class JobCrdCheck:
    """Reports once, after the start, the CRDs that are not installed. Their informers wait for them, and the kinds that
    are installed are not affected. `announce` is called with a message if no kind is installed."""

    def __init__(self, jobs: Sequence[Informer[Unstructured]], announce: Callable[[str], None]) -> None:
        self._jobs = jobs
        self._announce = announce

    async def run(self) -> None:
        """Runs until cancelled."""
        for informer in self._jobs:
            await informer.wait_synced()
        missing = sorted({str(each.resource) for each in self._jobs if not each.served})
        if missing:
            log.warning("crds are not installed, their kinds wait for them", crds=missing, install=INSTALL)
        if missing and not any(each.served for each in self._jobs):
            self._announce(f"no kind of job is installed; the operator waits for the CRDs: {INSTALL}")
        await asyncio.Event().wait()
