"""Where the image is written, and the account that it runs as."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build/image"
USER = 65532
"""UID and GID of the operator, as in the images of distroless; the Containerfile has the same."""


def version() -> str:
    """The version of the checkout, read without importing it."""
    text = (ROOT / "trainop/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found
    return found[1]


def archive_path(folder: Path = OUTPUT) -> Path:
    """The OCI archive."""
    return folder / f"trainop-{version()}.oci.tar"


def sbom_path(folder: Path = OUTPUT) -> Path:
    """The software bill of materials."""
    return folder / f"trainop-{version()}.cdx.json"
