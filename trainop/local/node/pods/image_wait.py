"""Waits until a container has its image, and says meanwhile what it waits for, as kubelet does.

Source: kubernetes `pkg/kubelet/images/image_manager.go`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from trainop.local.node.pods.containers import Image, ImageError, Report
from trainop.local.node.pods.context import NodeContext
from trainop.local.node.pods.status import Waiting
from trainop.runtime import Json

BACK_OFF = "ImagePullBackOff"


class ImageWait:
    """The image of one container. The back-off is its own, and no other container waits for it."""

    def __init__(
        self,
        context: NodeContext,
        container: Json,
        report: Report,
        show: Callable[[Waiting], None],
        pause: Callable[[float | None], Awaitable[bool]],
    ) -> None:
        """`show` gets what the container waits for. `pause` waits until the container need not run any more, at most
        so many seconds, and returns whether that is so."""
        self._context = context
        self._container = container
        self._report = report
        self._show = show
        self._pause = pause
        self._delay = 0.0

    async def find(self) -> Image | None:
        """None if the container need not run any more."""
        timing = self._context.timing
        retry = timing.retry_initial
        while True:
            try:
                image = await self._try()
            except ImageError as error:
                self._show(Waiting(error.reason, str(error)))
                if await self._pause(timing.retry_initial if error.pulled else retry):
                    return None
                if error.pulled and await self._back_off(error):
                    return None
                retry = min(2 * retry, timing.retry_limit)
            else:
                self._delay = 0.0
                return image

    async def _try(self) -> Image | None:
        found = asyncio.ensure_future(self._context.containers.find_image(self._container, self._report))
        ended = asyncio.ensure_future(self._pause(None))
        try:
            await asyncio.wait({found, ended}, return_when=asyncio.FIRST_COMPLETED)
            return found.result() if found.done() else None
        finally:
            found.cancel()
            ended.cancel()
            await asyncio.wait({found, ended})

    async def _back_off(self, error: ImageError) -> bool:
        timing, image = self._context.timing, self._container.get("image") or ""
        self._delay = min(2 * self._delay or timing.backoff_initial, timing.backoff_limit)
        self._report("Normal", "BackOff", f'Back-off pulling image "{image}"')
        self._show(Waiting(BACK_OFF, f'Back-off pulling image "{image}": {error.reason}: {error}'))
        return await self._pause(self._delay)
