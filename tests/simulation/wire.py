"""A `Transport` from one operator process to the API server that injects network faults.

A sent request travels outside of the process: it arrives, and its response returns, even if the process is frozen or
dead by then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tests.simulation.fault_rates import FaultRates
from tests.simulation.loop import Pause
from tests.simulation.oracle.losses import DENIED
from trainop.runtime.client.transport import NotConnectedError, Request, Response, Stream
from trainop.runtime.objects.metadata import Json

if TYPE_CHECKING:
    from tests.simulation.world import World

CLIENT_TIMEOUT = 30.0
JSON = {"content-type": "application/json"}
REASONS = {
    403: "Forbidden",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


def refusal(code: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(code, {**JSON, **(headers or {})}, msgspec.json.encode(status(code, message)))


def status(code: int, message: str) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": REASONS[code],
        "code": code,
    }


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never has to wait, such as the answer of the API server in this process."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the API server waits for something")


class Wire:
    """`name` is that of one incarnation of a replica."""

    def __init__(self, world: World, name: str, rng: random.Random, judge: Any = None) -> None:
        self.name = name
        self.judge = judge or world.judge
        self.dead = False
        self.outstanding = 0
        """Requests that wait for their answer, but for those of the election."""
        self.on_write: Callable[[str], bool] | None = None
        """Called with `before` and `after` when a write arrives; true kills the process at that very moment."""
        self.freezes: float | None = None
        """Seconds for which the process stands still once it has sent a write, be it of a job or of a child."""
        self.freeze: Callable[[float], None]
        self._world = world
        self._rng = rng
        self._lags: dict[str, float] = {}
        self._taps: dict[Tap, None] = {}

    @property
    def fault_rates(self) -> FaultRates:
        return self._world.fault_rates

    async def send(self, request: Request) -> Response:
        answer: Response = await self._exchange(request)
        self.judge.received(self.name, request, answer)
        return answer

    async def open(self, request: Request) -> Stream:
        answer: Response | Stream = await self._exchange(request)
        if isinstance(answer, Response):
            return Whole(answer)
        tap = Tap(self, self._world, answer, request.path)
        self._taps[tap] = None
        return tap

    async def close(self) -> None:
        """Nothing is held."""

    def cut(self) -> None:
        """All watches break."""
        for tap in tuple(self._taps):
            tap.cut()

    def lag(self, kind: str, seconds: float) -> None:
        """Delay watches of `jobs`, `pods` or `services` by `seconds`; others are not affected."""
        self._lags[kind] = self._world.loop.time() + seconds

    def late(self, path: str) -> float:
        """Seconds for which the watch of that collection still lags."""
        plural = path.rsplit("/", 1)[-1]
        kind = plural if plural in {"pods", "services"} else "jobs"
        return 0.0 if self._world.calm else max(0.0, self._lags.get(kind, 0.0) - self._world.loop.time())

    @property
    def mute(self) -> bool:
        """Whether a watch withholds events at the moment."""
        return any(tap.mute for tap in self._taps)

    def forget(self, tap: Tap) -> None:
        self._taps.pop(tap, None)

    async def _exchange(self, request: Request) -> Any:
        world = self._world
        if self.dead or "outage" in world.broken:
            await Pause(world.loop, 0.0 if self.dead else 0.01)
            raise NotConnectedError("connection refused")
        self.judge.asks(self.name)
        if request.method != "GET":
            self.judge.sends(self.name, request)
        if self.freezes is not None and _is_work(request):
            self.freeze(self.freezes)
            self.freezes = None
        fault = self._draw_fault(request)
        if fault == "refused":
            raise NotConnectedError("connection refused")
        answer = world.loop.create_future()
        world.loop.outside(self._latency(), self._arrive, request, fault, answer)
        outstanding = "/leases" not in request.path
        self.outstanding += outstanding
        try:
            return await answer
        finally:
            self.outstanding -= outstanding

    def _latency(self) -> float:
        fault_rates = self.fault_rates
        if fault_rates.slow and self._rng.random() < fault_rates.slow:
            return self._rng.uniform(0.1, 3)
        return self._rng.uniform(0, fault_rates.latency)

    def _draw_fault(self, request: Request) -> str:
        fault_rates, dice = self.fault_rates, self._rng.random()
        for kind in ("refused", "reset", "lost", "hang", "throttled", "broken", "conflict"):
            dice -= getattr(fault_rates, kind)
            if dice < 0:
                if kind == "conflict" and request.method not in {"PUT", "PATCH"}:
                    return ""
                return kind
        return ""

    def _arrive(self, request: Request, fault: str, answer: asyncio.Future[Any]) -> None:
        world, limit = self._world, request.timeout or CLIENT_TIMEOUT
        fault = self._find_refusal(request, fault)
        if fault:
            world.note(self.name, f"{request.method} {request.path}: {fault}")
        match fault:
            case "reset":
                self._fail(answer, 0.0, ConnectionResetError("connection reset"))
            case "throttled" | "broken" | "conflict" | "no quorum" | "not admitted" | "denied":
                self._answer(answer, self._refusal(fault))
            case "hang":
                if self._rng.random() < 0.5:
                    self._carry_out(request)
                self._fail(answer, limit, TimeoutError("no answer"))
            case "lost":
                self._carry_out(request)
                self._fail(answer, 0.0, ConnectionResetError("connection reset"))
            case _:
                result = self._carry_out(request)
                if result is not None:
                    self._answer(answer, result)

    def _find_refusal(self, request: Request, fault: str) -> str:
        """The refusal by the API server that replaces the drawn `fault`, if any."""
        broken = self._world.broken
        if request.method != "GET" and "no quorum" in broken:
            return "no quorum"
        if "no admission" in broken and _makes_child(request):
            return "not admitted"
        return "denied" if not fault and self._is_denied(request) else fault

    def _is_denied(self, request: Request) -> bool:
        """Whether an admission policy refuses the request; notifies the observer."""
        world = self._world
        if not world.denied or request.method != "POST" or not request.path.endswith(("/pods", "/secrets")):
            return False
        name = str(msgspec.json.decode(request.body or b"{}")["metadata"]["name"])
        denied = name.endswith(tuple(world.denied))
        if denied:
            world.observer.refuses(name)
        return denied

    def _refusal(self, fault: str) -> Response:
        match fault:
            case "throttled":
                return refusal(429, "too many requests", {"retry-after": str(self._rng.randint(1, 4))})
            case "conflict":
                return refusal(409, "the object has been modified; please apply your changes to it")
            case "broken":
                return refusal(self._rng.choice((500, 503)), "etcdserver: request timed out")
            case "no quorum":
                return refusal(500, "etcdserver: leader changed")
            case "denied":
                return refusal(403, f'admission webhook "policy" {DENIED}: not on this day')
        return refusal(500, "failed calling webhook: context deadline exceeded")

    def _carry_out(self, request: Request) -> Response | Stream | None:
        """None if the process died of it."""
        write = request.method != "GET"
        if write and self._strikes("before"):
            return None
        result: Response | Stream = self._world.serve(self.name, request)
        if write and self._strikes("after"):
            return None
        return result

    def _strikes(self, when: str) -> bool:
        return not self.dead and self.on_write is not None and self.on_write(when)

    def _answer(self, answer: asyncio.Future[Any], result: Response | Stream) -> None:
        self._world.loop.outside(self._latency(), _resolve, answer, result)

    def _fail(self, answer: asyncio.Future[Any], delay: float, error: Exception) -> None:
        self._world.loop.outside(delay, _reject, answer, error)


def _is_work(request: Request) -> bool:
    return request.method != "GET" and not any(part in request.path for part in ("/leases", "/events"))


def _makes_child(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith(("/pods", "/services"))


def _resolve(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def _reject(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


class Whole:
    """A complete response to a request for a stream."""

    def __init__(self, response: Response) -> None:
        self.status = response.status
        self.headers = response.headers
        self._body = response.body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body

    async def close(self) -> None:
        """Nothing is held."""


class Tap:
    """A watch as received by one process: events may be late, cut, withheld, repeated or ended by errors, never
    reordered."""

    def __init__(self, wire: Wire, world: World, stream: Stream, path: str) -> None:
        self.status = stream.status
        self.headers = stream.headers
        self._wire = wire
        self._world = world
        self._stream = stream
        self._path = path
        self._broken = False
        self.mute = False

    def cut(self) -> None:
        self._broken = True
        self._stream.end()  # type: ignore[attr-defined]  # a `Watch` of the embedded server

    async def chunks(self) -> AsyncIterator[bytes]:
        wire, world = self._wire, self._world
        lines = self._stream.chunks()
        try:
            async for chunk in lines:
                version = world.version
                delay = self._delay()
                if delay > 0.0:
                    self.mute = delay > 0.1
                    await Pause(world.loop, delay)
                    self.mute = False
                if wire.dead or self._broken:
                    break
                fault = self._draw_fault()
                if not fault:
                    wire.judge.shows(wire.name, self._path, chunk)
                    yield chunk
                    continue
                world.note(wire.name, f"watch {self._path}: {fault}")
                async for part in self._suffer(fault, chunk, version):
                    wire.judge.shows(wire.name, self._path, part)
                    yield part
                if fault in {"cut", "mute", "expired", "error"}:
                    self._broken |= fault == "mute"
                    break
        finally:
            wire.forget(self)
            await lines.aclose()  # type: ignore[attr-defined]  # an async generator
        if self._broken or wire.dead:
            raise ConnectionResetError("connection reset")

    async def close(self) -> None:
        self._wire.forget(self)
        await self._stream.close()

    def _delay(self) -> float:
        fault_rates, rng = self._wire.fault_rates, self._wire._rng
        if late := self._wire.late(self._path):
            return late
        if fault_rates.late and rng.random() < fault_rates.late:
            return rng.uniform(0.2, 12)
        return rng.uniform(0, fault_rates.latency)

    def _draw_fault(self) -> str:
        fault_rates, dice = self._wire.fault_rates, self._wire._rng.random()
        for kind in ("cut", "mute", "twice", "expired", "error", "bookmark"):
            dice -= getattr(fault_rates, kind)
            if dice < 0:
                return kind
        return ""

    async def _suffer(self, fault: str, chunk: bytes, version: int) -> AsyncIterator[bytes]:
        rng = self._wire._rng
        match fault:
            case "cut":
                self._broken = rng.random() < 0.5
                yield chunk[: rng.randrange(len(chunk))]
            case "mute":
                self.mute = True
                await Pause(self._world.loop, rng.uniform(5, 30))
            case "expired":
                yield error_line(410)
            case "error":
                yield error_line(rng.choice((500, 429)))
            case "twice":
                yield chunk + chunk.splitlines(keepends=True)[-1]
            case "bookmark":
                yield chunk + bookmark_like(chunk, version)


def error_line(code: int) -> bytes:
    return msgspec.json.encode({"type": "ERROR", "object": status(code, "too old, or too much")}) + b"\n"


def bookmark_like(chunk: bytes, version: int) -> bytes:
    """A bookmark of the kind that the chunk speaks of: everything up to `version` has been shown."""
    seen = msgspec.json.decode(chunk.splitlines()[-1])["object"]
    mark = {"kind": seen["kind"], "apiVersion": seen["apiVersion"], "metadata": {"resourceVersion": str(version)}}
    return msgspec.json.encode({"type": "BOOKMARK", "object": mark}) + b"\n"
