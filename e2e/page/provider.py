"""A small OpenID Connect provider: a form to log in, codes, ID tokens (RS256) and refresh tokens, over TLS.

As OpenID Connect Core 1.0 has it (sections 3.1 and 12), for one client and for users who have no passwords. What its
users get may be changed at any time, as no real provider lets a test do: how long tokens last, and how large they are.
"""

from __future__ import annotations

import base64
import html
import json
import secrets
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from e2e.cluster.certificates import Authority

CLIENT = "kubernetes"


@dataclass
class User:
    """What an ID token says of a user."""

    email: str
    groups: list[str] = field(default_factory=list)
    lifetime: float = 3600.0
    """Seconds, of each token."""
    filler: int = 0
    """Bytes that each token has besides, as those of users in many groups."""
    knows: bool = True
    """Whether refresh tokens are accepted: not after the user's session at the provider has ended."""


class Provider:
    """Codes, refresh tokens and users are in memory."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.secret = secrets.token_urlsafe(24)
        self.users: dict[str, User] = {}
        self.refreshed = 0
        self._key = rsa.generate_private_key(65537, 2048)
        self._codes: dict[str, tuple[str, str]] = {}
        self._refresh: dict[str, str] = {}

    async def discovery(self, _request: web.Request) -> web.Response:
        ends = {"authorization": "authorize", "token": "token"}
        return web.json_response(
            {
                "issuer": self.url,
                **{f"{name}_endpoint": f"{self.url}/{path}" for name, path in ends.items()},
                "jwks_uri": f"{self.url}/keys",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        )

    async def keys(self, _request: web.Request) -> web.Response:
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "1", "n": _number(numbers.n), "e": _number(numbers.e)}
        return web.json_response({"keys": [key]})

    async def ask(self, request: web.Request) -> web.Response:
        """The form. It keeps what the client has asked for in its own address."""
        action = html.escape(str(request.rel_url))
        buttons = "".join(f'<button name="user" value="{each}">{each}</button>' for each in sorted(self.users))
        page = f'<title>log in</title><form method="post" action="{action}">{buttons}</form>'
        return web.Response(text=page, content_type="text/html")

    async def log_in(self, request: web.Request) -> web.Response:
        user = str((await request.post())["user"])
        asked = request.query
        assert user in self.users
        assert (asked["client_id"], asked["response_type"]) == (CLIENT, "code")
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self._codes[code] = (user, asked.get("nonce", ""))
        separator = "&" if "?" in asked["redirect_uri"] else "?"
        raise web.HTTPSeeOther(f"{asked['redirect_uri']}{separator}code={code}&state={asked['state']}")

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        if not self._is_client(request, form):
            return web.json_response({"error": "invalid_client"}, status=401)
        if form["grant_type"] == "refresh_token":
            name, nonce = self._refresh.pop(str(form["refresh_token"]), ""), ""
            self.refreshed += 1
        else:
            name, nonce = self._codes.pop(str(form["code"]), ("", ""))
        user = self.users.get(name)
        if user is None or (form["grant_type"] == "refresh_token" and not user.knows):
            return web.json_response({"error": "invalid_grant"}, status=400)
        again = secrets.token_urlsafe(24)
        self._refresh[again] = name
        answer = {
            "access_token": secrets.token_hex(16 + user.filler // 2),
            "token_type": "Bearer",
            "expires_in": int(user.lifetime),
            "refresh_token": again,
            "id_token": self.id_token(name, nonce),
        }
        return web.json_response(answer, headers={"Cache-Control": "no-store"})

    def _is_client(self, request: web.Request, form: Any) -> bool:
        given = f"{form.get('client_id', '')}:{form.get('client_secret', '')}"
        if (header := request.headers.get("Authorization", "")).startswith("Basic "):
            given = base64.b64decode(header.removeprefix("Basic ")).decode()
        return secrets.compare_digest(given, f"{CLIENT}:{self.secret}")

    def id_token(self, name: str, nonce: str = "", audience: str = CLIENT) -> str:
        """A token of this user, as a login gives one."""
        user, now = self.users[name], time.time()
        claims = {
            "iss": self.url,
            "sub": name,
            "aud": audience,
            "iat": int(now),
            "exp": int(now + user.lifetime),
            "email": user.email,
            "email_verified": True,
            "groups": user.groups,
            **({"nonce": nonce} if nonce else {}),
            **({"filler": secrets.token_hex(user.filler * 3 // 8)} if user.filler else {}),
        }
        head = {"alg": "RS256", "kid": "1", "typ": "JWT"}
        signed = ".".join(_base64(json.dumps(each).encode()) for each in (head, claims))
        return f"{signed}.{_base64(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _base64(value.to_bytes((value.bit_length() + 7) // 8, "big"))


@asynccontextmanager
async def serve(port: int, authority: Authority) -> AsyncIterator[Provider]:
    """A provider at this port of 127.0.0.1, within the context."""
    provider = Provider(f"https://127.0.0.1:{port}")
    application = web.Application()
    application.router.add_get("/.well-known/openid-configuration", provider.discovery)
    application.router.add_get("/keys", provider.keys)
    application.router.add_get("/authorize", provider.ask)
    application.router.add_post("/authorize", provider.log_in)
    application.router.add_post("/token", provider.token)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("provider", "provider", hosts=["127.0.0.1"]))
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    try:
        yield provider
    finally:
        await runner.cleanup()
