"""What the replaced operators do, recorded from their programs, and the table of all differences from it.

The recordings are data, so that no test needs Go: `make test-takeover` compares them with the programs, or with
`TRAINOP_RECORD=1` writes them anew. A difference between a recording and our operator that no row of `rules.toml` names
fails a test; so does a row that names a difference which does not exist. DI-orchestrator is no Go module that can be
built here: its flags were recorded once, from programs built of its tag.
"""

from __future__ import annotations

from pathlib import Path

RECORDED = Path(__file__).resolve().parent / "recorded"
