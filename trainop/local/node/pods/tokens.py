"""The service account tokens of one pod: requested once, kept, and renewed before most of their life is over.

Source: kubelet `pkg/kubelet/token/token_manager.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
import structlog

from trainop.local.node.pods.volumes import TokenSource, VolumeError, volume_tokens
from trainop.runtime import SERVICE_ACCOUNTS, ApiError, Client, Clock, Json
from trainop.runtime.lowlevel import Request, parse_timestamp

CHECK_SECONDS = 10.0
"""Between two looks at the clock. One timer for the life of a token would be late after a suspension of the machine."""
_MARGIN = timedelta(seconds=2 * CHECK_SECONDS)
_LONGEST = timedelta(hours=24)
_SHARE = 0.8
"""A token is renewed after this share of its life, or after `_LONGEST`, less `_MARGIN`."""
DEFAULT_ACCOUNT = "default"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Token:
    text: str = field(repr=False)
    renew_at: datetime
    expires: datetime


class PodTokens:
    """All tokens of a pod, by audience and lifetime."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._held: dict[TokenSource, _Token] = {}

    def due(self) -> bool:
        """Whether a token must be renewed."""
        now = self._clock.now()
        return any(now >= token.renew_at for token in self._held.values())

    async def of_volumes(self, pod: Json) -> Mapping[TokenSource, str]:
        """The tokens that the pod's volumes contain. Raises `VolumeError`, as kubelet's mount does."""
        found: dict[TokenSource, str] = {}
        for volume, source in volume_tokens(pod):
            try:
                found[source] = await self.get(pod, source)
            except ApiError as error:
                raise VolumeError(
                    f'MountVolume.SetUp failed for volume "{volume}" : failed to fetch token: {error}'
                ) from error
        return found

    async def get(self, pod: Json, source: TokenSource) -> str:
        """A valid token. If it cannot be renewed, the one before as long as it is valid. Raises `ApiError`."""
        held, now = self._held.get(source), self._clock.now()
        if held is not None and now < held.renew_at:
            return held.text
        try:
            held = self._held[source] = await self._request(pod, source)
        except (ApiError, ConnectionError, TimeoutError) as error:
            if held is None or now >= held.expires:
                raise
            name = f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"
            log.warning("token not renewed", pod=name, expires=held.expires.isoformat(), error=str(error))
        return held.text

    async def _request(self, pod: Json, source: TokenSource) -> _Token:
        meta = pod["metadata"]
        reference = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        spec: Json = {"expirationSeconds": source.seconds, "boundObjectRef": reference}
        if source.audience:
            spec["audiences"] = [source.audience]
        account = pod["spec"].get("serviceAccountName") or DEFAULT_ACCOUNT
        path = SERVICE_ACCOUNTS.path(meta.get("namespace", ""), account, "token")
        answer = await self._client.request(Request("POST", path, body=msgspec.json.encode({"spec": spec})))
        granted = msgspec.json.decode(answer.body)
        expires = parse_timestamp(granted["status"]["expirationTimestamp"])
        life = timedelta(seconds=granted["spec"]["expirationSeconds"])
        renew_at = expires - life + min(_SHARE * life, _LONGEST) - _MARGIN
        return _Token(granted["status"]["token"], renew_at, expires)
