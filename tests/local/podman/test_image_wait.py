"""How long containers wait between two pulls, in virtual time: kubelet's 10 s, doubled up to 300 s."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from trainop.local.node.pods.containers import Image, ImageError
from trainop.local.node.pods.context import Timing
from trainop.local.node.pods.image_wait import ImageWait
from trainop.local.node.pods.status import Waiting

FOUND = Image("id", "shown")


class Story:
    """A container and its images: what is found at each attempt, and what happened between them."""

    def __init__(self, attempts: list[Image | ImageError], ends_after: int = 1000) -> None:
        self.attempts = iter(attempts)
        self.pauses: list[float] = []
        self.shown: list[Waiting] = []
        self.events: list[tuple[str, str, str]] = []
        self._ends_after = ends_after
        context: Any = SimpleNamespace(containers=self, timing=Timing())
        self.wait = ImageWait(context, {"image": "a:1"}, self.report, self.shown.append, self.pause)

    async def find_image(self, _container: Any, _report: Any, /) -> Image:
        found = next(self.attempts)
        if isinstance(found, ImageError):
            raise found
        return found

    def report(self, *event: Any) -> None:
        self.events.append(event)

    async def pause(self, seconds: float | None) -> bool:
        if seconds is None:
            await asyncio.Event().wait()
        assert seconds is not None
        self.pauses.append(seconds)
        return len(self.pauses) >= self._ends_after


def failed() -> ImageError:
    return ImageError("ErrImagePull", "no route", pulled=True)


async def test_an_image_that_is_there_is_waited_for_in_no_way() -> None:
    story = Story([FOUND])
    assert await story.wait.find() == FOUND
    assert (story.pauses, story.shown, story.events) == ([], [], [])


async def test_the_back_off_doubles_to_five_minutes_and_begins_anew_after_a_success() -> None:
    story = Story([*(failed() for _ in range(8)), FOUND, failed(), FOUND])
    assert await story.wait.find() == FOUND
    assert set(story.pauses[::2]) == {1}, "seconds for which the error is shown"
    assert story.pauses[1::2] == [10, 20, 40, 80, 160, 300, 300, 300]
    assert [each.reason for each in story.shown] == ["ErrImagePull", "ImagePullBackOff"] * 8
    assert story.shown[1].message == 'Back-off pulling image "a:1": ErrImagePull: no route'
    assert story.events == [("Normal", "BackOff", 'Back-off pulling image "a:1"')] * 8
    story.pauses.clear()
    assert await story.wait.find() == FOUND
    assert story.pauses[1::2] == [10]


async def test_what_needs_no_pull_is_looked_for_often() -> None:
    never = [ImageError("ErrImageNeverPull", "not present") for _ in range(8)]
    story = Story([*never, FOUND])
    assert await story.wait.find() == FOUND
    assert story.pauses == [1, 2, 4, 8, 15, 15, 15, 15]
    assert {each.reason for each in story.shown} == {"ErrImageNeverPull"}


@pytest.mark.parametrize("pauses", [1, 2])
async def test_a_container_that_ends_waits_no_longer(pauses: int) -> None:
    story = Story([failed(), FOUND], ends_after=pauses)
    assert await story.wait.find() is None
    assert len(story.pauses) == pauses


async def test_a_search_that_hangs_is_cancelled_when_the_container_ends() -> None:
    story, begun, ended, cancelled = Story([]), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hang(_container: Any, _report: Any, /) -> Image:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async def pause(_seconds: float | None) -> bool:
        await ended.wait()
        return True

    context: Any = SimpleNamespace(containers=SimpleNamespace(find_image=hang), timing=Timing())
    waiting = asyncio.create_task(ImageWait(context, {"image": "a"}, story.report, story.shown.append, pause).find())
    await begun.wait()
    ended.set()
    assert await waiting is None
    assert cancelled.is_set()
