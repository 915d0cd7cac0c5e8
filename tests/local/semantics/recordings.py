"""What a kube-apiserver 1.34.4 answered, recorded once; ours must answer the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def recorded(name: str) -> Any:
    return json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_text(encoding="utf-8"))
