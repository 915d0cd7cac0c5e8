"""The page as one document: its style and script are within it, and its policy allows these two and nothing else."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import NamedTuple


class Page(NamedTuple):
    """The document, and the headers of every answer."""

    body: bytes
    headers: dict[str, str]


def read_page(*, choose: bool = False) -> Page:
    """Reads the files of the package. `choose`: the page has a field for the namespace."""
    folder = files("trainop.ui") / "static"
    html, style, script = ((folder / name).read_text("utf-8") for name in ("page.html", "page.css", "page.js"))
    if choose:
        html = html.replace('id="where" hidden', 'id="where"', 1)
    body = html.replace("/*style*/", style, 1).replace("/*script*/", script, 1)
    policy = (
        "default-src 'none'; connect-src 'self'; "
        f"style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
    return Page(body.encode(), headers)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
