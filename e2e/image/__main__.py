"""Builds the operator's image from the wheel in `dist/`, without a container registry: `make image`.

Writes the OCI archive, which `podman load` and `ctr images import` read, and the SBOM beside it.
Needs Debian's apt and the package index of the wheels' dependencies; no root, no Docker.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from e2e.image import debian, python
from e2e.image.archive import ImageConfig, Layer, make_layer, write_archive
from e2e.image.places import OUTPUT, ROOT, USER, archive_path, sbom_path, version
from e2e.image.sbom import write_sbom

MIB = 1 << 20


def build(wheel: Path, epoch: int, work: Path, output: Path) -> None:
    """Builds the three layers below `work`, and writes archive and SBOM to `output`."""
    base, dependencies, own = (work / name for name in ("debian", "dependencies", "trainop"))
    debian.unpack(debian.download(work / "packages"), base)
    debian.add_configuration(base, USER)
    interpreter = python.Interpreter(base)
    interpreter.compile(base, Path("usr/lib") / debian.PYTHON)
    wheels = python.download(interpreter, wheel, ROOT / "constraints.txt", work / "wheels")
    python.unpack(wheels, dependencies)
    python.add_environment(dependencies)
    interpreter.compile(dependencies, python.SITE)
    python.unpack([wheel], own)
    programs = python.add_programs(own)
    interpreter.compile(own, python.SITE)
    layers = [make_layer(tree.name, tree, epoch) for tree in (base, dependencies, own)]
    config = ImageConfig(
        reference=f"docker.io/library/trainop:{version()}",  # what the name `trainop` in a manifest stands for
        architecture=debian.architecture(),
        user=USER,
        entrypoint="/manager",
        environment=(f"PATH=/{python.HOME}/bin:/usr/bin",),
        labels={"org.opencontainers.image.title": "trainop", "org.opencontainers.image.version": version()},
    )
    output.mkdir(parents=True, exist_ok=True)
    digest = write_archive(archive_path(output), config, layers, epoch)
    count = write_sbom(sbom_path(output), config, digest, (base, dependencies, own), epoch)
    print(f"{archive_path(output)}  {digest}")
    report(layers)
    print(f"programs: {' '.join(programs)}\n{sbom_path(output)}  {count} components")


def report(layers: list[Layer]) -> None:
    """Prints the size of each layer."""
    print(f"{'layer':14}{'MiB':>8}{'compressed':>12}")
    for layer in layers:
        print(f"{layer.name:14}{layer.size / MIB:8.1f}{len(layer.data) / MIB:12.1f}")
    plain, compressed = sum(layer.size for layer in layers), sum(len(layer.data) for layer in layers)
    print(f"{'total':14}{plain / MIB:8.1f}{compressed / MIB:12.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.image", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, help="directory of archive and SBOM (default: %(default)s)"
    )
    output = parser.parse_args().output
    wheels = sorted((ROOT / "dist").glob(f"trainop-{version()}-*.whl"))
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if not wheels or not epoch:
        sys.exit("run `make image`, which builds the wheel and sets SOURCE_DATE_EPOCH")
    with tempfile.TemporaryDirectory(prefix="trainop-image-") as work:
        try:
            build(wheels[0], int(epoch), Path(work), output)
        except debian.ImageError as error:
            sys.exit(f"make image: {error}")


if __name__ == "__main__":
    main()
