"""mkdocs hooks: add pages outside `docs/` and all linked files to the website, and rewrite links to them.

Links in the Markdown files are relative paths in the repository. On the website, `docs/x` is at the top level,
`README.md` is the home page, other top-level pages are below `project/`, and all other linked files are copied below
`repository/`. The website is therefore self-contained.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
ELSEWHERE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")

log = logging.getLogger("mkdocs.hooks.website")


def place_of(path: Path) -> str:
    """The path of a repository file on the website."""
    inside = path.relative_to(ROOT)
    if inside.parts[0] == "docs":
        return inside.relative_to("docs").as_posix()
    if inside.name == "README.md" and len(inside.parts) == 1:
        return "index.md"
    if len(inside.parts) == 1 and inside.suffix == ".md":
        return f"project/{inside.name.lower()}"
    return f"repository/{inside.as_posix()}"


def linked_files(page: Path) -> list[Path]:
    """The existing files that a page links to with relative links."""
    targets = [(page.parent / target).resolve() for target, _ in LINK.findall(page.read_text(encoding="utf-8"))]
    return [target for target in targets if target.is_file() and target.is_relative_to(ROOT)]


def reached_files() -> set[Path]:
    """The pages at the top level and in `docs/`, and all files reachable from them by links."""
    queue = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found: set[Path] = set()
    while queue:
        path = queue.pop()
        if path in found:
            continue
        found.add(path)
        if path.suffix == ".md":
            queue += linked_files(path)
    return found


def on_files(files: Any, config: Any) -> Any:
    """Adds the files outside `docs/`."""
    from mkdocs.structure.files import File  # noqa: PLC0415  # only `make site` installs it

    for path in sorted(reached_files()):
        if files.get_file_from_path(place_of(path)) is None:
            files.append(File.generated(config, place_of(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rewrites relative links to the paths of their targets on the website."""
    source = Path(page.file.abs_src_path)
    folder = os.path.dirname(page.file.src_uri)  # noqa: PTH120  # a URL path, not a file system path

    def rewritten(match: re.Match[str]) -> str:
        target = (source.parent / match[1]).resolve()
        if not target.is_file() or not target.is_relative_to(ROOT):
            return match[0]  # mkdocs reports broken links
        return f"]({os.path.relpath(place_of(target), folder or '.')}{match[2] or ''})"

    return LINK.sub(rewritten, markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Warns about external resources that a browser would load; a strict build fails on warnings."""
    for tag in ELSEWHERE.findall(output):
        log.warning("%s loads an external resource: %s", page.file.src_uri, tag)
    return output
