"""A fake API server that answers from a script, one response per request in order, and records the requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from trainop.runtime.client.transport import Request, Response
from trainop.runtime.objects.metadata import HasMetadata, Json, Key

Step: TypeAlias = bytes | Json | float | Exception
"""A step of a stream: bytes to send, an object to send as a line, seconds to wait, or a connection error to raise."""

HANG = float("inf")
"""Last step of a stream that stays open and sends nothing."""


class Streamed:
    """A response whose body is a script; it ends cleanly after the last step."""

    def __init__(self, steps: Sequence[Step], status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.headers: Mapping[str, str] = headers or {}
        self.closed = False
        self._steps = steps

    async def chunks(self) -> AsyncIterator[bytes]:
        for step in self._steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                await (asyncio.sleep(step) if step < HANG else asyncio.Event().wait())
            else:
                yield step if isinstance(step, bytes) else msgspec.json.encode(step) + b"\n"

    async def close(self) -> None:
        self.closed = True


Answer: TypeAlias = Response | Streamed | Exception


class ScriptedTransport:
    """Returns the scripted responses in order; a request beyond the last one hangs and makes `exhausted` return."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self._exhausted = asyncio.Event()
        self.requests: list[Request] = []
        self.times: list[float] = []
        self.before: Callable[[], None] = lambda: None

    async def exhausted(self) -> None:
        """Wait until all responses were used and one more request has arrived."""
        await self._exhausted.wait()

    async def send(self, request: Request) -> Response:
        answer = await self._next(request)
        if isinstance(answer, Streamed):
            raise TypeError(f"{request} meets {answer}")
        return answer

    async def open(self, request: Request) -> Streamed:
        answer = await self._next(request)
        if isinstance(answer, Response):
            return Streamed([answer.body], answer.status, answer.headers)
        return answer

    async def close(self) -> None:
        pass

    async def _next(self, request: Request) -> Response | Streamed:
        self.before()
        self.requests.append(request)
        self.times.append(asyncio.get_running_loop().time())
        if not self._answers:
            self._exhausted.set()
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def delays(self) -> list[float]:
        """Seconds between consecutive requests."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

    def verbs(self) -> list[str]:
        """The type of each request: `stream`, `list`, `next` (page), `watch@<version>`, `probe` (of the server's
        current resourceVersion), or else its method."""
        return [verb_of(request) for request in self.requests]


def verb_of(request: Request) -> str:
    query = request.query
    if "sendInitialEvents" in query:
        return "stream"
    if "watch" in query:
        return f"watch@{query['resourceVersion']}"
    if "continue" in query:
        return "next"
    if query.get("limit") == "1":
        return "probe"
    return "list" if "limit" in query else request.method


def pod(name: str, version: int | str = 1, uid: str | None = None, **labels: str) -> Json:
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
        "labels": labels,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def event(kind: str, obj: Json) -> Json:
    return {"type": kind, "object": obj}


def added(name: str, version: int | str, uid: str | None = None) -> Json:
    return event("ADDED", pod(name, version, uid))


def modified(name: str, version: int | str, uid: str | None = None) -> Json:
    return event("MODIFIED", pod(name, version, uid))


def deleted(name: str, version: int | str, uid: str | None = None) -> Json:
    return event("DELETED", pod(name, version, uid))


def bookmark(version: int | str, *, end: bool = False) -> Json:
    annotations = {"k8s.io/initial-events-end": "true"} if end else {}
    metadata = {"resourceVersion": str(version), "annotations": annotations}
    return event("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": metadata})


def status(code: int, reason: str, message: str = "", *causes: str) -> Json:
    details: dict[str, Any] = {"causes": [{"reason": cause} for cause in causes]} if causes else {}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "details": details,
    }


def refusal(code: int, reason: str = "", *causes: str, message: str = "", retry_after: int | None = None) -> Response:
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return Response(code, headers, msgspec.json.encode(status(code, reason, message, *causes)))


def json_response(value: Any, code: int = 200) -> Response:
    return Response(code, {}, msgspec.json.encode(value))


def page(*objects: Json, version: int | str = 10, token: str = "", kind: str = "Pod") -> Response:
    metadata = {"resourceVersion": str(version), "continue": token}
    return json_response({"kind": f"{kind}List", "apiVersion": "v1", "metadata": metadata, "items": list(objects)})


NO_STREAMED_LISTS = refusal(422, "Invalid")
TOO_LARGE = refusal(504, "Timeout", "ResourceVersionTooLarge")


class RecordingHandler:
    """Records each call as a short line: add `+a@1` (`+a@1!` when initial), update `~a@2`, delete `-a` (`-a?`: final
    state unknown, `-a??`: only the key is known)."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def add(self, obj: HasMetadata, initial: bool) -> None:
        self.calls.append(f"+{obj.metadata.name}@{obj.metadata.resource_version}{'!' if initial else ''}")

    def update(self, old: HasMetadata, new: HasMetadata) -> None:
        assert old.metadata.key == new.metadata.key
        self.calls.append(f"~{new.metadata.name}@{new.metadata.resource_version}")

    def delete(self, obj: HasMetadata | None, key: Key, final_state_unknown: bool) -> None:
        if obj is None:
            assert final_state_unknown
            self.calls.append(f"-{key.name}??")
            return
        assert obj.metadata.key == key
        self.calls.append(f"-{key.name}{'?' if final_state_unknown else ''}")


class CountingMetrics:
    """`InformerMetrics` and `RequestMetrics` that record their calls in lists and counters."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []
        self.sizes: list[tuple[int, int]] = []
        self.retries: list[tuple[str, str, str]] = []
        self.waits: list[float] = []
        self.decodes = 0
        self.relists: list[str] = []
        self.restarts: list[str] = []
        self.drops: list[str] = []
        self.failures = 0
        self.objects = 0
        self.lists = 0

    def requested(self, method: str, code: str, host: str, seconds: float, *, sent: int, received: int) -> None:
        self.requests.append((method, code, host))
        self.sizes.append((sent, received))

    def retried(self, method: str, code: str, host: str) -> None:
        self.retries.append((method, code, host))

    def limited(self, method: str, host: str, seconds: float) -> None:
        self.waits.append(seconds)

    def decoded(self, seconds: float) -> None:
        self.decodes += 1

    def stored(self, resource: str, change: int) -> None:
        self.objects += change

    def relisted(self, resource: str, reason: str) -> None:
        self.relists.append(reason)

    def rewatched(self, resource: str, reason: str) -> None:
        self.restarts.append(reason)

    def listed(self, resource: str, seconds: float) -> None:
        self.lists += 1

    def received(self, resource: str, events: int, lag: float) -> None: ...

    def dropped(self, resource: str, reason: str) -> None:
        self.drops.append(reason)

    def handler_failed(self, resource: str) -> None:
        self.failures += 1
