"""A minimal synchronous API client for test set-up and assertions: JSON in and out, one connection per request."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from pathlib import Path
from typing import Any, NamedTuple

TIMEOUT = 30.0
"""Request timeout in seconds: on a busy machine an API server can pause for a long time."""


class Answer(NamedTuple):
    """A response: `body` is decoded JSON, else text. `status` 0 means a connection error, with its message as body."""

    status: int
    body: Any


class Api:
    """A client of one API server, authenticated by a client certificate."""

    def __init__(self, host: str, port: int, authority: Path, cert: Path, key: Path) -> None:
        self.host, self.port = host, port
        self.context = ssl.create_default_context(cafile=str(authority))
        self.context.load_cert_chain(str(cert), str(key))

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        *,
        accept: str = "application/json",
    ) -> Answer:
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT, context=self.context)
        data = None if body is None else json.dumps(body)
        try:
            headers = {"Accept": accept, **({"Content-Type": content_type} if data else {})}
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return Answer(0, str(error))
        finally:
            connection.close()
        with contextlib.suppress(ValueError):
            return Answer(response.status, json.loads(text))
        return Answer(response.status, text)
