"""schemathesis against di-server on the embedded API server, by the document that di-server serves.

python -m e2e.fuzz [examples]        a few minutes with 500 examples; exit code 1 if a request is answered wrongly

schemathesis is installed into $TRAINOP_FUZZ or ~/.cache/trainop-fuzz, once.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import venv
from dataclasses import replace
from pathlib import Path

from tests.diserver.world import SETTINGS, world

VERSION = "4.32.5"
CONFIG = """
[phases.coverage]
unexpected-methods = []    # they get 501, as upstream

[parameters]
namespace = "default"
coordinator = "a-coordinator"

[checks]
positive_data_acceptance.enabled = false    # "name" without "namespace", and 1.0 for a whole number, are refused
unsupported_method.enabled = false
"""


def environment() -> Path:
    """The program, installed if missing."""
    folder = Path(os.environ.get("TRAINOP_FUZZ") or Path.home() / ".cache" / "trainop-fuzz") / VERSION
    program = folder / "bin" / "schemathesis"
    if not program.exists():
        print(f"installing schemathesis {VERSION} ...", flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run(
            [folder / "bin" / "python", "-m", "pip", "install", "--quiet", f"schemathesis=={VERSION}"], check=True
        )
    return program


async def fuzz(program: Path, examples: int) -> int:
    async with world() as here, here.di_server(replace(SETTINGS, max_pods=20)) as server:
        await here.nodes(8, 8, 0, 4)
        await here.aggregator_config()
        await here.job()
        with tempfile.TemporaryDirectory() as name:
            config = Path(name) / "schemathesis.toml"
            config.write_text(CONFIG)
            options = ["--max-examples", str(examples), "--generation-deterministic", "--workers", "1"]
            command = [str(program), "--config-file", str(config), "run", f"{server.url}/openapi.json", *options]
            process = await asyncio.create_subprocess_exec(*command)
            code = await process.wait()
        print(f"{len(await here.names())} pods and {len(await here.leases())} leases are left")
        return code or int(bool(await here.leases()))


def main() -> None:
    examples = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    try:
        program = environment()
    except subprocess.CalledProcessError:
        sys.exit(f"schemathesis {VERSION} cannot be installed: pip needs access to a package index")
    sys.exit(asyncio.run(fuzz(program, examples)))


if __name__ == "__main__":
    main()
