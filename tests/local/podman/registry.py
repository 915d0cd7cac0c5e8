"""A registry on a loopback port that serves one image, hangs, or refuses (OCI distribution specification)."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self


class Registry:
    """Serves the image in `folder`, which has the format `oci-dir` of podman, as `image:1`; `hanging:1` never comes."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        """Paths of the requests."""
        self.asked_to_hang = threading.Event()
        self.end = threading.Event()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                if "hanging" in self.path:
                    registry.asked_to_hang.set()
                    registry.end.wait()
                found = registry.find(self.path, folder)
                self.send_response(200 if found is not None else 404)
                body, kind = found or (
                    b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"not here"}]}',
                    "application/json",
                )
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815  # as the base class calls it

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"

    @staticmethod
    def find(path: str, folder: Path) -> tuple[bytes, str] | None:
        """The body and its type."""
        if path == "/v2/":
            return b"{}", "application/json"
        _, _, name, kind, last = (*path.split("/"), "", "", "")[:5]
        if name != "image":
            return None
        (manifest,) = json.loads((folder / "index.json").read_text())["manifests"]
        if kind == "manifests" and last in {"1", manifest["digest"]}:
            return (folder / "blobs" / manifest["digest"].replace(":", "/")).read_bytes(), manifest["mediaType"]
        blob = folder / "blobs" / last.replace(":", "/")
        return (blob.read_bytes(), "application/octet-stream") if kind == "blobs" and blob.is_file() else None

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end.set()
        self._server.shutdown()
        self._server.server_close()
