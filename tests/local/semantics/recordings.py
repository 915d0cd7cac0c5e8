"""What a kube-apiserver 1.34.4 answered, recorded by `record.py`; ours must answer the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "recorded"


def recorded(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
