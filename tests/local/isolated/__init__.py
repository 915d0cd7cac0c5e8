"""Runs of a script that tries to get out of `trainop run --isolated`."""

from __future__ import annotations

import re
from pathlib import Path


def probe_names() -> list[str]:
    """The attempts of the script, which cannot be imported: it makes them."""
    text = Path(__file__).with_name("probe.py").read_text(encoding="utf-8")
    return re.findall(r'^    "(.+)": ', text.split("\nATTEMPTS = {")[1], re.MULTILINE)
