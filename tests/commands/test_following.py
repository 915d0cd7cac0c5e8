"""`trainop logs -f` and the page beside servers that break off: each line comes once, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patience import PATIENCE
from trainop.commands import logs
from trainop.commands.loglines import Line, Position
from trainop.commands.logs import LogOptions, Logs
from trainop.commands.target import Target, job_types
from trainop.runtime import ApiError
from trainop.runtime.lowlevel import Request

JOB: dict[str, Any] = {"metadata": {"name": "train", "namespace": "ns"}}
SUCCEEDED = {"conditions": [{"type": "Succeeded", "status": "True"}]}
RUNNING: dict[str, Any] = {"running": {}}
TERMINATED: dict[str, Any] = {"terminated": {"exitCode": 0}}


def stamp(second: int, fraction: int = 0) -> str:
    return f"2026-11-28T10:00:{second:02}.{fraction:09}Z"


def line(second: int, text: str, fraction: int = 0) -> bytes:
    return f"{stamp(second, fraction)} {text}\n".encode()


class Kept:
    """A sink that keeps the texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.notes: list[str] = []

    def begin(self, failed: str, labels: Sequence[str]) -> None:
        """Nothing is shown of it."""

    def lines(self, _source: Any, lines: Sequence[Line]) -> None:
        self.texts += [each.text.decode() for each in lines]

    def rest(self, text: str) -> None:
        self.texts.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)


class Broken:
    """A log that is sent in pieces, and then breaks off, or ends."""

    def __init__(self, pieces: Sequence[bytes], error: Exception | None) -> None:
        self._pieces, self._error = pieces, error

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Nothing is open."""


class Api:
    """A job with one pod, whose log is opened again and again: each time `opened` says what comes."""

    def __init__(self, opened: Sequence[Callable[[Mapping[str, str]], Broken]], states: Sequence[Any]) -> None:
        """`states`: of the container, by the number of times that the log has been opened; the last one is final, and
        the job has finished with it."""
        self.queries: list[Mapping[str, str]] = []
        self._opened, self._states = opened, states

    async def list(self, *_: Any, **__: Any) -> Any:
        state = self._states[min(len(self.queries), len(self._states) - 1)]
        status = {"containerStatuses": [{"name": "c", "state": state, "restartCount": 0}]}
        metadata = {"name": "train-worker-0", "namespace": "ns", "uid": "1"}
        return SimpleNamespace(
            items=[{"metadata": metadata, "spec": {"containers": [{"name": "c"}]}, "status": status}]
        )

    async def get(self, *_: Any) -> Any:
        return JOB | ({"status": SUCCEEDED} if len(self.queries) >= len(self._states) - 1 else {})

    async def open(self, request: Request) -> Broken:
        self.queries.append(request.query)
        return self._opened[len(self.queries) - 1](request.query)


async def follow(api: Any, options: LogOptions | None = None) -> Kept:
    sink = Kept()
    connection: Any = SimpleNamespace(client=api)
    async with asyncio.timeout(PATIENCE):
        await Logs(connection, Target(job_types()[0], JOB), options or LogOptions(), sink).show(follow=True)
    return sink


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "POLL", 0)


WHOLE = [line(1, "a"), line(2, "b"), line(2, "c"), line(2, "d", 5), line(3, "e")]


def served(lines: int, error: Exception | None, rest: bytes = b"") -> Callable[[Mapping[str, str]], Broken]:
    """As a kubelet: from the beginning of the second that the client asks for."""

    def answer(query: Mapping[str, str]) -> Broken:
        since = query.get("sinceTime", "")
        assert len(since) in {0, 20}
        return Broken([each for each in WHOLE[:lines] if each.decode()[:19] >= since[:19]] + [rest], error)

    return answer


@pytest.mark.parametrize("lines", range(6))
@pytest.mark.parametrize("rest", [b"", b"2026-11-28T10:00:03.0000"])
async def test_a_log_that_breaks_off_is_read_on_wherever_it_was(lines: int, rest: bytes):
    broken = served(lines, ConnectionError("payload is not completed"), rest)
    api = Api([broken, broken, served(5, None)], [RUNNING, RUNNING, TERMINATED, TERMINATED])
    sink = await follow(api)
    assert (sink.texts, sink.notes) == (list("abcde"), [])
    assert [query.get("sinceTime", "")[17:19] for query in api.queries[1:]] == [
        ["", "01", "02", "02", "02", "03"][lines]
    ] * 2


async def test_the_log_of_a_container_that_runs_has_no_end():
    """A kubelet that restarts ends it as if the container had."""
    api = Api([served(2, None), served(4, None), served(5, None)], [RUNNING, RUNNING, RUNNING, TERMINATED])
    assert (await follow(api)).texts == list("abcde")
    assert len(api.queries) == 3


async def test_what_the_user_asked_for_is_asked_for_once():
    api = Api([served(2, ConnectionError("reset")), served(5, None)], [RUNNING, TERMINATED, TERMINATED])
    await follow(api, LogOptions(tail=2, since=60))
    first, second = api.queries
    assert ("tailLines" in first, "sinceSeconds" in first, "sinceTime" in first) == (True, True, False)
    assert ("tailLines" in second, "sinceSeconds" in second, "sinceTime" in second) == (False, False, True)


def refused(code: int) -> Callable[[Mapping[str, str]], Broken]:
    def answer(_query: Mapping[str, str]) -> Broken:
        raise ApiError(code, "Refused", f"answer {code}", {})

    return answer


@pytest.mark.parametrize(
    ("code", "times", "texts"), [(500, 3, "abcde"), (502, 3, "abcde"), (403, 2, "ab"), (404, 2, "ab")]
)
async def test_a_log_that_cannot_be_opened_is_said_once_and_asked_for_again_if_that_may_help(
    code: int, times: int, texts: str
):
    api = Api([served(2, ConnectionError("reset")), refused(code), served(5, None)], [RUNNING, RUNNING, TERMINATED])
    sink = await follow(api)
    assert (sink.texts, sink.notes) == (list(texts), [f"train-worker-0: answer {code}"])
    assert len(api.queries) == times


async def test_a_log_of_a_job_that_has_finished_is_not_asked_for_without_end():
    api = Api([refused(500)] * 99, [TERMINATED])
    sink = await follow(api)
    assert (len(api.queries), sink.notes) == (logs.ATTEMPTS + 1, ["train-worker-0: answer 500"])


async def test_the_run_before_the_last_restart_is_read_once():
    api = Api([served(2, None)] + [served(5, None)] * 9, [RUNNING, RUNNING, RUNNING, TERMINATED])
    api.get = finished_after(5)  # type: ignore[method-assign]
    assert (await follow(api, LogOptions(previous=True))).texts == ["a", "b"]
    assert len(api.queries) == 1


def finished_after(looks: int) -> Any:
    left = iter(range(looks))

    async def get(*_: Any) -> Any:
        return JOB | ({} if next(left, None) is not None else {"status": SUCCEEDED})

    return get


async def test_an_api_server_that_is_away_is_one_error():
    """And no group of them, which a command would show with a traceback."""

    class Away(Api):
        async def get(self, *_: Any) -> Any:
            raise ConnectionError("refused")

    with pytest.raises(ConnectionError, match="refused"):
        await follow(Away([], [RUNNING]))


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_lines_of_one_time_are_counted(size: int):
    """What was written at once has one time, and may come in several pieces."""
    whole = [Line(stamp(1), b"%d" % number) for number in range(5)] + [Line(stamp(2), b"%d" % n) for n in range(5, 9)]

    async def blocks(until: int) -> AsyncIterator[Sequence[Line]]:
        for first in range(0, until, size):
            yield whole[first : min(first + size, until)]

    for cut in range(10):
        position, found = Position(), list[bytes]()
        for until in (cut, cut, 9):
            async for lines in position.unread(blocks(until)):
                found += [text for _, text in lines]
        assert found == [text for _, text in whole]


async def test_a_clock_that_was_set_back_loses_nothing():
    async def once(*lines: Line) -> AsyncIterator[Sequence[Line]]:
        yield lines

    position, found = Position(), list[bytes]()
    for lines in ((Line(stamp(9), b"a"), Line(stamp(5), b"b")), (Line(stamp(5), b"b"), Line(stamp(4), b"c"))):
        async for fresh in position.unread(once(*lines)):
            found += [text for _, text in fresh]
    assert found == [b"a", b"b", b"c"]
