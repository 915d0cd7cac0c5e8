"""`python -m e2e.docs` writes `docs/kinds/`, one page per kind, `docs/flags/`, one per program, `docs/contents.md`,
`docs/life-of-a-restart.md` and the tables of the migrate pages; `--check` only compares, exit code 1 if outdated."""

from __future__ import annotations

import sys
from pathlib import Path

from e2e.docs import contents, flags, restart
from e2e.docs.page import HEADER, common_page, page
from e2e.docs.samples import ROOT
from e2e.parity import rules
from trainop.programs.schemes import FRAMEWORKS

FOLDER = ROOT / "docs" / "kinds"


def pages() -> dict[Path, str]:
    kinds = {FOLDER / f"{framework.kind.lower()}.md": page(framework) for framework in FRAMEWORKS.values()}
    kinds[FOLDER / "fields.md"] = common_page(FRAMEWORKS.values())
    written = kinds | rules.pages() | flags.pages() | restart.pages()
    return written | contents.pages(written)


def generated() -> dict[Path, str]:
    """The pages in the folders, without those that are written by hand (MPIJob)."""
    found = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    kinds = {path: text for path, text in found.items() if text.startswith(HEADER)}
    others = [*rules.pages(), *flags.FOLDER.glob("*.md"), restart.PAGE, contents.PAGE]
    return kinds | {path: path.read_text(encoding="utf-8") for path in others if path.exists()}


def main() -> int:
    wanted, found = pages(), generated()
    stale = sorted(path.name for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))
    if "--check" in sys.argv:
        print(f"not up to date in docs: {', '.join(stale)}; run `make docs`" if stale else "docs is up to date")
        return bool(stale)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in found.keys() - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{len(wanted)} pages, {len(stale)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
