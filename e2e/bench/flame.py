"""Renders folded stacks as a flame graph: each box is a function, its width the share of samples."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, ROW, MIN_WIDTH = 1400.0, 16, 1.5
CHARACTER_WIDTH = 6.2
"""Pixels per character, for cutting names to their boxes. Boxes narrower than `MIN_WIDTH` are omitted."""


@dataclass
class Frame:
    samples: int = 0
    callees: dict[str, Frame] = field(default_factory=dict)


def build_tree(stacks: Iterable[str]) -> Frame:
    """The call tree of folded stacks, lines such as `main;run;work 17`."""
    root = Frame()
    for line in stacks:
        names, _, count = line.rpartition(" ")
        frame = root
        root.samples += int(count)
        for name in names.split(";"):
            frame = frame.callees.setdefault(name, Frame())
            frame.samples += int(count)
    return root


def depth(frame: Frame) -> int:
    return 1 + max(map(depth, frame.callees.values()), default=0)


def draw(stacks: Iterable[str]) -> str:
    """The SVG text; each box has a tooltip with function and share."""
    root = build_tree(stacks)
    height = ROW * depth(root)
    drawing = _Drawing(root.samples, WIDTH / max(root.samples, 1))
    boxes = "\n".join(drawing.boxes("all", root, 0.0, height - ROW))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" height="{height}" font-family="monospace" '
        f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n{boxes}\n</svg>\n'
    )


@dataclass(frozen=True)
class _Drawing:
    samples: int
    scale: float
    """Pixels per sample."""

    def boxes(self, name: str, frame: Frame, x: float, y: int) -> Iterator[str]:
        width = frame.samples * self.scale
        if width < MIN_WIDTH:
            return
        hue = 20 + zlib.crc32(name.encode()) % 40
        label = escape(name[: int(width / CHARACTER_WIDTH)]) if width > 4 * CHARACTER_WIDTH else ""
        title = escape(f"{name}: {100 * frame.samples / self.samples:.1f} %")
        yield f'<g><title>{title}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 1}" '
        yield f'fill="hsl({hue} 80% 65%)"/><text x="{x + 2:.1f}" y="{y + ROW - 5}">{label}</text></g>'
        for callee, each in sorted(frame.callees.items()):
            yield from self.boxes(callee, each, x, y - ROW)
            x += each.samples * self.scale
