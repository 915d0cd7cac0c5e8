"""A controller that creates, renews and serves the webhook certificates and injects the `caBundle`.

It reconciles one Secret: read the webhook configurations and the Secret, compute the next state (`keyring.advance`),
write the Secret, load the certificate into the server, and patch the configurations. It runs on every replica.
Replicas are coordinated by the Secret's resourceVersion: after a conflict, a replica reads the Secret again and serves
what the other replica wrote.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
import structlog

from trainop.runtime.cache.cache import Cache
from trainop.runtime.client.client import Client, PatchKind
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.controller.controller import Controller
from trainop.runtime.controller.enqueue import Enqueue, EnqueueMapped
from trainop.runtime.controller.reconcile import Result
from trainop.runtime.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    ReconcileError,
    UnhealthyError,
)
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import SECRETS, HasMetadata, Json, Key, PartialObject, Resource
from trainop.runtime.serving.certificate_folder import CertificateError, ServingCertificate
from trainop.runtime.webhook.contest import LONGEST_PAUSE, NOTICED, Contest, other_writer
from trainop.runtime.webhook.injection import Configuration, injection, is_managed_by_cert_manager

if TYPE_CHECKING:
    from trainop.runtime.webhook.keyring import Keyring

CHECK_INTERVAL = 12 * 3600.0
SETTLE_TIME = 10.0
"""Seconds from reading a bundle back until all API servers are assumed to use it."""

FORBIDDEN_RETRY = 600.0
"""Seconds until the next attempt if permissions are missing."""

CONTROLLER = "certificates"

log = structlog.get_logger(__name__)

_decode = msgspec.json.Decoder(PartialObject).decode


@dataclass(frozen=True, slots=True)
class RotationOptions:
    """What to maintain.

    `secret` is the Secret that stores the certificates. `names` are the DNS names of the server, the first of which is
    `<service>.<namespace>.svc`. `configurations` receive the `caBundle`, except in webhooks of other Services.
    `authority` and `organization` are the common name and organization of the CA certificate.
    """

    secret: Key
    names: tuple[str, ...]
    configurations: tuple[Configuration, ...] = ()
    authority: str = "webhook-ca"
    organization: str = "webhook"


@dataclass(frozen=True, slots=True)
class _Reading:
    """The configurations as read before the Secret; `failures` has one error per configuration that was not read."""

    found: tuple[tuple[Configuration, Json], ...]
    failures: tuple[Exception, ...]


class CertificateRotation:
    """A runnable for `Manager.add`: runs on every replica until cancelled.

    Creates the Secret if it is missing. Certificates written by cert-controller are kept until they need renewal.
    Errors of the API server are retried with back-off, without limit; missing permissions slowly, with one log entry.
    """

    def __init__(
        self,
        client: Client,
        options: RotationOptions,
        certificate: ServingCertificate,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        metrics: Metrics | None = None,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        """`client` must not be gated by leader election, because every replica writes. `announce` gets the text of what
        an administrator has to change, such as for an event."""
        self._clock = clock or SystemClock()
        self._metrics = metrics or Metrics()
        self._rotator = _Rotator(client, options, certificate, self._clock, self._metrics)
        self._rotator.announce = announce or self._rotator.announce
        self._controller = Controller(CONTROLLER, self._rotator, clock=self._clock, rng=rng, metrics=self._metrics)
        self._key = options.secret
        # Informers only trigger reconciles. The reconciler reads from the API server, so that without permission to
        # watch, rotation still works at CHECK_INTERVAL.
        self._cache = Cache(client, clock=self._clock, rng=rng, metrics=self._metrics)
        mapper: EnqueueMapped[HasMetadata] = EnqueueMapped(lambda _: (self._key,))
        enqueue = Enqueue(self._controller.queue, mapper)
        objects: list[tuple[Resource, str, tuple[str, ...]]] = [
            (SECRETS, options.secret.name, (options.secret.namespace,))
        ]
        objects += [(each.resource, each.name, ()) for each in options.configurations]
        for resource, name, namespaces in objects:
            informer = self._cache.informer(
                resource,
                _decode,
                namespaces=namespaces,
                field_selector=f"metadata.name={name}",
                metadata_only=True,
            )
            informer.add_handler(enqueue)

    def check(self) -> None:
        """Readiness check: passes once a certificate is served and all configurations that exist contain its CA, or if
        permissions are missing, which waiting cannot change. Raises `UnhealthyError`."""
        if not self._rotator.settled:
            raise UnhealthyError("certificates are not ready")

    async def run(self) -> None:
        self._controller.queue.add(self._key)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controller.run(), name="certificates")
            await self._rotator.succeeded.wait()  # without permissions, watches would only fail
            tasks.create_task(self._cache.run(), name="certificates cache")


class _Rotator:
    """The reconciler of the one Secret."""

    def __init__(
        self, client: Client, options: RotationOptions, certificate: ServingCertificate, clock: Clock, metrics: Metrics
    ) -> None:
        from trainop.runtime.webhook import keyring  # noqa: PLC0415  # takes 20 MiB, needed only for rotation

        self._keyring = keyring
        self._client = client
        self._options = options
        self._subject = keyring.Subject(options.names, options.authority, options.organization)
        self._certificate = certificate
        self._clock = clock
        self._metrics = metrics
        self._published: tuple[bytes, float] | None = None
        """The bundle that all configurations contain, and the monotonic time of its confirmation."""
        self._contests = {each: Contest() for each in options.configurations}
        for each in options.configurations:
            metrics.bundle_resets.labels(each.name)
        self.announce: Callable[[str], None] = lambda _text: None
        self._reported_missing: set[Configuration] = set()
        self._reported_forbidden = ""
        self.succeeded = asyncio.Event()
        self.settled = False
        """The first attempt has succeeded, or has failed for lack of permissions."""

    async def reconcile(self, key: Key) -> Result:
        try:
            return await self._rotate(key)
        except ForbiddenError as error:
            if str(error) != self._reported_forbidden:
                log.warning(
                    "no permission to maintain webhook certificates", error=str(error), retry_in=FORBIDDEN_RETRY
                )
            self._reported_forbidden = str(error)
            self.settled = True
            return Result(requeue_after=FORBIDDEN_RETRY)

    async def _rotate(self, key: Key) -> Result:
        # Configurations are read before the Secret. The bundle written to them is then at least as new as the one they
        # contain, and the patch tests that they are unchanged. So a replica that lags never reverts a bundle.
        reading = await self._read_configurations()
        secret = await self._read_secret(key)
        ring = self._keyring.Keyring.parse((secret or {}).get("data") or {})
        now = self._clock.now()
        desired, why = ring, ""
        if secret is None or not is_managed_by_cert_manager(secret):
            desired, why = self._keyring.advance(ring, self._subject, now, published=self._is_settled(ring, reading))
        if why:
            log.info("updating certificates", secret=str(key), reason=why)
            try:
                await self._write(key, secret, desired)
            except (ConflictError, AlreadyExistsError):
                return Result(requeue=True)  # another replica wrote it first
            except NotFoundError:
                if secret is None:
                    raise  # the namespace does not exist
                return Result(requeue=True)  # deleted meanwhile
        self._serve(desired)
        pause = await self._inject(reading, desired.bundle)
        self.settled = True
        self.succeeded.set()
        after = self._requeue_after(desired, now)
        return Result(requeue_after=min(after, pause) if pause else after)

    async def _read_secret(self, key: Key) -> Json | None:
        try:
            return await self._client.get(SECRETS, key.name, key.namespace)
        except NotFoundError:
            return None

    async def _write(self, key: Key, secret: Json | None, ring: Keyring) -> None:
        if secret is None:
            metadata = {"name": key.name, "namespace": key.namespace}
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": ring.data()}
            await self._client.create(SECRETS, body)
            return
        others = {name: value for name, value in (secret.get("data") or {}).items() if name not in self._keyring.FIELDS}
        await self._client.replace(SECRETS, {**secret, "data": others | ring.data()})

    def _serve(self, ring: Keyring) -> None:
        try:
            if self._certificate.load(ring.server.certificate, ring.server.key):
                self._metrics.certificate_loaded(str(self._options.secret), self._certificate.expires)
                log.info("serving certificate loaded", secret=str(self._options.secret))
        except CertificateError as error:
            self._metrics.certificate_read_errors.inc()
            raise ReconcileError(str(error)) from error
        self._certificate.authority = ring.bundle

    async def _read_configurations(self) -> _Reading:
        found, failures = [], []
        for each in self._options.configurations:
            try:
                configuration = await self._client.get(each.resource, each.name)
            except NotFoundError:
                if each not in self._reported_missing:
                    log.info("webhook configuration not found", configuration=str(each))
                self._reported_missing.add(each)
            except (ApiError, ConnectionError, TimeoutError) as error:
                failures.append(error)
            else:
                if not is_managed_by_cert_manager(configuration):
                    found.append((each, configuration))
        return _Reading(tuple(found), tuple(failures))

    async def _inject(self, reading: _Reading, bundle: bytes) -> float:
        """Writes the bundle where it is missing; returns the seconds until the next write of one that is contested, or
        0."""
        failures: list[Exception] = list(reading.failures)
        pauses: list[float] = []
        for each, configuration in reading.found:
            patch = injection(configuration, bundle, self._options.names)
            if pause := self._contend(each, configuration, bundle, present=not patch):
                pauses.append(pause)
            if not patch or pause:
                continue
            try:
                await self._client.patch(each.resource, each.name, None, patch, kind=PatchKind.JSON)
                log.info("CA bundle injected", configuration=str(each))
                self._contests[each].note_write(self._clock.monotonic())
                self._published = None
            except (ConflictError, InvalidError, NotFoundError):
                failures.append(ReconcileError(f"{each} was changed by another writer"))  # the `test` operation failed
            except (ApiError, ConnectionError, TimeoutError) as error:
                failures.append(error)
        self._confirm(bundle, failures)
        if pauses:
            self._published = None
        return min(pauses, default=0.0)

    def _contend(self, each: Configuration, configuration: Json, bundle: bytes, *, present: bool) -> float:
        """Counts and reports resets of the bundle; returns the seconds until it may be written."""
        contest, now = self._contests[each], self._clock.monotonic()
        if contest.is_reset(bundle, present=present, now=now):
            self._metrics.bundle_resets.labels(each.name).inc()
            if contest.resets == NOTICED:
                writer = other_writer(configuration, self._client.field_manager)
                log.warning("CA bundle is reset again and again", configuration=str(each), by=writer)
                self.announce(
                    f"{writer} has reset caBundle of {each} {NOTICED} times. Until it is written again, with pauses of "
                    f"up to {LONGEST_PAUSE:.0f} s, the API server cannot call the webhooks: let {writer} ignore "
                    "/webhooks/*/clientConfig/caBundle"
                )
        return 0.0 if present else contest.pause(now)

    def _confirm(self, bundle: bytes, failures: Sequence[Exception]) -> None:
        if failures:
            self._published = None
            raise failures[0]
        if self._published is None or self._published[0] != bundle:
            self._published = (bundle, self._clock.monotonic())

    def _is_settled(self, ring: Keyring, reading: _Reading) -> bool:
        """Whether all configurations have contained the bundle of `ring` for at least SETTLE_TIME."""
        published = not reading.failures and not any(
            injection(seen, ring.bundle, self._options.names) for _, seen in reading.found
        )
        if not published or self._published is None or self._published[0] != ring.bundle:
            return False
        return self._clock.monotonic() - self._published[1] >= SETTLE_TIME

    def _requeue_after(self, ring: Keyring, now: datetime) -> float:
        """Seconds until the next change may be due."""
        if ring.successor is not None:
            return SETTLE_TIME
        retires = ring.previous_until
        left = (retires - now).total_seconds() if ring.previous and retires else CHECK_INTERVAL
        return min(max(left, 1.0), CHECK_INTERVAL)
