"""The page of many users behind a proxy, which logs them in and adds each one's own Kubernetes token to the requests.

With this token, and no other, everything is read that the user sees. A seat belongs to one token and one namespace:
nothing that it has read gets to another. Each request asks the API server who the token is of, so that one that has
expired, or was withdrawn, gets nothing that was read before. Tokens are only kept in the clients that send them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from aiohttp import web

import trainop
from trainop.commands.connection import Connection
from trainop.runtime import (
    ApiError,
    Client,
    ConfigError,
    ForbiddenError,
    HttpTransport,
    Resource,
    UnauthorizedError,
    load_config,
)
from trainop.runtime.lowlevel import AuthHeaders, ClusterConfig, cut, printable
from trainop.ui.board import Board
from trainop.ui.gate import RefusedError, Seat
from trainop.ui.model import clean
from trainop.ui.source import JobId, Source

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the CA of the API server is. A token there is never read."""
MARK, MARKED = "X-Trainop", "page"
"""The page sends this header. Another site cannot: a browser asks us first whether it may, and gets no answer."""

SEATS, SEATS_PER_USER = 64, 8
VIEWERS, VIEWERS_PER_USER = 160, 16
JOBS, JOBS_PER_USER = 128, 16
"""That are followed at once."""
REQUESTS_PER_USER = 48
"""At once, streams included: a fifth of the connections of the server."""
LOG_BYTES = 4 * 1024 * 1024
"""Of the log of one job, which each of its users has of their own."""
IDLE = 180.0
"""Seconds after the last request until a seat is given up."""
PATIENCE = 10.0
"""Seconds in which the API server has to say who a token is of."""
STRANGERS = 16
"""Tokens without a seat about which the API server is asked at once; others wait."""

REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview")
ANONYMOUS = "system:anonymous"
_TOKEN = re.compile(r"Bearer ([A-Za-z0-9._~+/-]{1,16384}=*)", re.IGNORECASE)
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

MISSING = (
    "the request has no token of yours: the proxy in front of this page must log you in, and add the header "
    "Authorization: Bearer with your own Kubernetes token to every request (docs/ui.md)"
)
EXPIRED = "the API server does not accept your token any more; log in again"

Key: TypeAlias = tuple[bytes, str]
"""Digest of the token, and namespace; empty: all."""


def api_server(
    kubeconfig: str | None = None,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterConfig:
    """The address and the CA of the API server, without any credentials: those of the pod, else of a kubeconfig.

    Raises `ConfigError`.
    """
    host = environ.get("KUBERNETES_SERVICE_HOST")
    if kubeconfig or environ.get("KUBECONFIG") or not host:
        found = load_config(kubeconfig, context)
    else:
        ca = service_account / "ca.crt"
        if not ca.is_file():
            raise ConfigError(f"{ca} does not exist; mount the ConfigMap kube-root-ca.crt there")
        port = environ.get("KUBERNETES_SERVICE_PORT") or "443"
        found = ClusterConfig(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", ca=ca)
    return replace(found, credentials=None, client_certificate=None, client_key=None, headers=())


class _Credentials:
    """The token of one user."""

    def __init__(self, token: str) -> None:
        self._auth = AuthHeaders({"authorization": f"Bearer {token}"})
        self.seat: ProxySeat | None = None

    async def auth_headers(self) -> AuthHeaders:
        return self._auth

    def refused(self, _auth: AuthHeaders) -> bool:
        """The API server has answered 401: whatever was read with this token is not shown any more."""
        if self.seat is not None:
            self.seat.end()
        return False


class ProxySeat(Seat):
    """That of one token, in one namespace or all."""

    def __init__(self, source: Source, transport: HttpTransport, user: str, key: Key) -> None:
        """`user`: their name; empty if they may not ask for it."""
        super().__init__(source, Board(source, log_bytes=LOG_BYTES))
        self.name = user
        self.user = user or f"the token {key[0].hex()[:8]}"
        self.using = 0
        """Requests at this moment, streams included."""
        self.left_at = time.monotonic()
        self._transport = transport
        self._work = asyncio.create_task(self.board.run())

    def end(self) -> None:
        self.ended = True
        for bell in self.bells:
            bell.set()

    async def close(self) -> None:
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        await self._transport.close()


def _check_own(what: str, own: int, most: int) -> None:
    """Of what one user has. Raises `RefusedError`."""
    if own >= most:
        raise RefusedError(503, f"at most {most} {what} of one user at once; close a tab")


def _check_limit(what: str, total: int, most: int, own: int, each: int) -> None:
    """Of what all users have together, and of what one of them has. Raises `RefusedError`."""
    _check_own(what, own, each)
    if total >= most:
        raise RefusedError(503, f"at most {most} {what} of all users at once; try again later")


class ProxyGate:
    """Admits who has a token that the API server accepts. With `namespace`, only that one is shown."""

    public = frozenset({"/", "/healthz"})

    def __init__(self, config: ClusterConfig, namespace: str | None = None) -> None:
        self.seats: dict[Key, ProxySeat] = {}
        self._config, self._namespace = config, namespace
        self.choose = namespace is None
        self._strangers = asyncio.Semaphore(STRANGERS)
        self._asking: dict[bytes, asyncio.Task[str]] = {}
        """Who the tokens without a seat are of, by their digests."""
        self._waiting: Counter[bytes] = Counter()
        """Requests that wait for such an answer."""
        self._closing: set[asyncio.Task[None]] = set()

    def check(self, request: web.Request) -> None:
        """Names of hosts are the proxy's to check: whoever gets past it has no token."""

    @asynccontextmanager
    async def seat(self, request: web.Request) -> AsyncIterator[Seat]:
        token, namespace = _token_of(request), self._namespace_of(request)
        if request.headers.get(MARK) != MARKED:
            raise RefusedError(403, f"only the page may ask for this: the header {MARK}: {MARKED} is missing")
        key = (hashlib.sha256(token.encode()).digest(), namespace)
        known = self.seats.get(key)
        found = known or await self._open(key, token)
        _check_own("requests", sum(each.using for each in self._own(found)), REQUESTS_PER_USER)
        found.using += 1
        try:
            if known is not None and await self._ask(known.source.connection.client) != known.name:
                known.end()
            if found.ended:
                raise RefusedError(401, EXPIRED)
            yield found
        finally:
            found.using -= 1
            found.left_at = time.monotonic()
            if found.ended:
                self._drop(key, found)

    def _namespace_of(self, request: web.Request) -> str:
        if self._namespace is not None:
            return self._namespace
        given = request.query.get("namespace", "")
        if given and not _NAMESPACE.fullmatch(given):
            raise RefusedError(400, f"{printable(given)[:100]!r} is no name of a namespace")
        return given

    # Seats ------------------------------------------------------------------------------------------------------------

    async def _open(self, key: Key, token: str) -> ProxySeat:
        """Raises `RefusedError`."""
        user = await self._who_is(key[0], token)
        if (found := self.seats.get(key)) is not None:  # another tab was faster
            return found
        self._make_room(user or key[0].hex())
        credentials = _Credentials(token)
        config, transport, client = self._connect(credentials)
        namespace = key[1]
        where = f"namespace {namespace}" if namespace else "all namespaces"
        connection = Connection(client, namespace or "default", config.server, config)
        source = Source(connection, namespace or None, f"{clean(user or 'somebody')}, {where}")
        seat = credentials.seat = self.seats[key] = ProxySeat(source, transport, user, key)
        return seat

    def _connect(self, credentials: _Credentials) -> tuple[ClusterConfig, HttpTransport, Client]:
        config = replace(self._config, credentials=credentials)
        transport = HttpTransport(config)
        agent = f"trainop-ui/{trainop.__version__} ({platform.system().lower()}/{platform.machine()})"
        return config, transport, Client(transport, user_agent=agent, field_manager="trainop-ui")

    async def _who_is(self, digest: bytes, token: str) -> str:
        """All requests with one token share the question, so that a token alone keeps no others from being asked about,
        and not all connections wait for its answer. Raises `RefusedError`."""
        _check_own("requests", self._waiting[digest], REQUESTS_PER_USER)
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.create_task(self._ask_about(token))
            asking.add_done_callback(lambda task: self._asked(digest, task))
        self._waiting[digest] += 1
        try:
            return await asyncio.shield(asking)
        finally:
            self._waiting[digest] -= 1
            self._waiting += Counter()  # without those that are zero

    def _asked(self, digest: bytes, task: asyncio.Task[str]) -> None:
        del self._asking[digest]
        if not task.cancelled():
            task.exception()  # seen, even if nobody waits for it any more

    async def _ask_about(self, token: str) -> str:
        _, transport, client = self._connect(_Credentials(token))
        try:
            async with self._strangers:
                return await self._ask(client)
        finally:
            await transport.close()

    async def _ask(self, client: Client) -> str:
        """Whose token it is; empty for one who is known and may not ask that. Raises `RefusedError`."""
        about = {"apiVersion": "authentication.k8s.io/v1", "kind": REVIEWS.kind}
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await client.create(REVIEWS, about)
        except UnauthorizedError:
            raise RefusedError(401, EXPIRED) from None
        except ForbiddenError:
            return ""
        except (ApiError, ConnectionError, TimeoutError) as error:
            words = printable(" ".join(str(error).split())) or "no answer in time"
            raise RefusedError(502, f"the API server cannot be asked who you are: {cut(words, 500)}") from None
        user = str(((answer.get("status") or {}).get("userInfo") or {}).get("username", ""))
        if user in {"", ANONYMOUS}:
            raise RefusedError(401, EXPIRED)
        return user

    def _make_room(self, user: str) -> None:
        """For one more seat, if need be in place of one that nobody uses now. Raises `RefusedError`."""
        own = [key for key, seat in self.seats.items() if seat.user == user]
        full = own if len(own) >= SEATS_PER_USER else list(self.seats) if len(self.seats) >= SEATS else []
        idle = [key for key in full if not self.seats[key].using]
        if idle:
            oldest = min(idle, key=lambda key: self.seats[key].left_at)
            self._drop(oldest, self.seats[oldest])
        elif full:
            _check_limit("logins and namespaces", len(self.seats), SEATS, len(own), SEATS_PER_USER)

    def _drop(self, key: Key, seat: ProxySeat) -> None:
        """Its streams that are left end by themselves, and the last one drops it again."""
        if self.seats.get(key) is seat:
            del self.seats[key]
        if not seat.using:
            self._close(seat.close())

    def _close(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def check_room(self, seat: Seat, wanted: JobId | None) -> None:
        assert isinstance(seat, ProxySeat)  # noqa: S101  # all seats of this gate are
        tabs, own_tabs = (sum(len(each.bells) for each in seats) for seats in self._all_and_own(seat))
        _check_limit("tabs", tabs, VIEWERS, own_tabs, VIEWERS_PER_USER)
        if wanted is not None and wanted not in seat.board.followed:
            jobs, own_jobs = (sum(len(each.board.followed) for each in seats) for seats in self._all_and_own(seat))
            _check_limit("jobs", jobs, JOBS, own_jobs, JOBS_PER_USER)

    def _all_and_own(self, seat: ProxySeat) -> tuple[list[ProxySeat], list[ProxySeat]]:
        return [*self.seats.values()], self._own(seat)

    def _own(self, seat: ProxySeat) -> list[ProxySeat]:
        """All seats of the user of this one."""
        return [each for each in self.seats.values() if each.user == seat.user]

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(5)
                before = time.monotonic() - IDLE
                for key, seat in [*self.seats.items()]:
                    if not seat.using and (seat.ended or seat.left_at < before):
                        self._drop(key, seat)
        finally:
            for key, seat in [*self.seats.items()]:
                seat.using = 0
                self._drop(key, seat)
            for task in self._asking.values():
                task.cancel()
            await asyncio.gather(*self._closing, *self._asking.values(), return_exceptions=True)


def _token_of(request: web.Request) -> str:
    """The one bearer token of a request. Raises `RefusedError`."""
    given = request.headers.getall("Authorization", [])
    found = _TOKEN.fullmatch(given[0]) if len(given) == 1 else None
    if found is None:
        raise RefusedError(401, MISSING)
    return found[1]
