"""The command `trainop manifests`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from trainop import __version__
from trainop.errors import TrainopError
from trainop.manifests.names import IMAGE, NAMESPACE
from trainop.manifests.text import GENERATED, to_yaml
from trainop.manifests.tree import files, stream

WITH_CRDS = """\
# These are all objects of an installation, CRDs included. `kubectl delete -f` of this stream deletes every job of the
# cluster with the CRDs. To delete the operator alone, add --without-crds.
"""


class OutdatedManifestsError(TrainopError):
    """Files on disk differ from the generated ones."""


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=Path("manifests"))
@click.option("--check", is_flag=True, help="Write nothing; fail if a file is not up to date.")
@click.option("--print", "to_stdout", is_flag=True, help="Write nothing; print all objects for `kubectl apply -f -`.")
@click.option("--without-crds", is_flag=True, help="With --print: leave out the CRDs, as before `kubectl delete -f -`.")
@click.option("--namespace", default=NAMESPACE, show_default=True, help="With --print: the operator's namespace.")
@click.option(
    "--image", default=f"{IMAGE}:{__version__}", show_default=True, help="With --print: the operator's image."
)
def manifests_command(
    directory: Path, *, check: bool, to_stdout: bool, without_crds: bool, namespace: str, image: str
) -> None:
    """Write CRDs, RBAC and the Deployment of the operator to DIRECTORY (default: `manifests`)."""
    if to_stdout:
        warning = "" if without_crds else WITH_CRDS
        click.echo(warning + to_yaml(*stream(namespace, image, with_crds=not without_crds)), nl=False)
        return
    expected = files()
    stale = _stale_files(directory, expected)
    if check:
        differing = [path for path, text in expected.items() if _read(directory / path) != text]
        if differing or stale:
            listed = ", ".join(sorted([*differing, *stale]))
            raise OutdatedManifestsError(
                f"not up to date in {directory}: {listed}; run `trainop manifests {directory}`"
            )
        return
    for path, text in expected.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text, encoding="utf-8")
    for path in stale:
        (directory / path).unlink()
    click.echo(f"{len(expected)} files in {directory}", file=sys.stderr)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _is_generated(path: Path) -> bool:
    return GENERATED in (_read(path) or "").partition("\n")[0]


def _stale_files(directory: Path, expected: Mapping[str, str]) -> list[str]:
    """Generated files of an earlier version that are no longer generated."""
    found = (path for path in directory.rglob("*.yaml") if _is_generated(path))
    names = (path.relative_to(directory).as_posix() for path in found)
    return sorted(name for name in names if name not in expected)
