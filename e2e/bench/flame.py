"""Folded stacks as a flame graph: one box for each function on each stack, as wide as its share of the samples."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, ROW, LEAST = 1400.0, 16, 1.5
LETTER = 6.2
"""Pixels of a letter, to cut names to their boxes; boxes narrower than `LEAST` are left out."""


@dataclass
class Frame:
    samples: int = 0
    callees: dict[str, Frame] = field(default_factory=dict)


def grow(stacks: Iterable[str]) -> Frame:
    """The tree of calls from lines such as `main;run;work 17`."""
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
    """An SVG; hovering over a box tells its function and share."""
    root = grow(stacks)
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
    """Pixels of a sample."""

    def boxes(self, name: str, frame: Frame, x: float, y: int) -> Iterator[str]:
        width = frame.samples * self.scale
        if width < LEAST:
            return
        hue = 20 + zlib.crc32(name.encode()) % 40
        label = escape(name[: int(width / LETTER)]) if width > 4 * LETTER else ""
        about = escape(f"{name}: {100 * frame.samples / self.samples:.1f} %")
        yield f'<g><title>{about}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 1}" '
        yield f'fill="hsl({hue} 80% 65%)"/><text x="{x + 2:.1f}" y="{y + ROW - 5}">{label}</text></g>'
        for callee, each in sorted(frame.callees.items()):
            yield from self.boxes(callee, each, x, y - ROW)
            x += each.samples * self.scale
