"""The software bill of materials (CycloneDX 1.6): every Debian package and Python distribution of the image."""

from __future__ import annotations

import email
import re
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseAcknowledgement
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from e2e.image.archive import ImageConfig
from e2e.image.debian import RECORDS, RELEASE, ImageError
from e2e.image.python import SITE

LICENSES = LicenseFactory()


def write_sbom(path: Path, config: ImageConfig, digest: str, trees: Iterable[Path], epoch: int) -> int:
    """Writes the SBOM of an image with these layers, validates it, and returns the number of components.

    Serial number and time derive from the image, so that equal images have equal SBOMs.
    """
    name, _, version = config.reference.rpartition("/")[2].partition(":")
    image = Component(
        name=name,
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref=digest,
        purl=PackageURL("oci", None, name, digest, {"arch": config.architecture, "tag": version}),
    )
    components = [component for tree in trees for component in (*debian(tree), *distributions(tree))]
    bom = Bom(
        components=components,
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, digest),
    )
    bom.metadata.component = image
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.register_dependency(image, components)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ImageError(f"the SBOM is not valid: {error}")
    path.write_text(text + "\n", encoding="utf-8")
    return len(components)


def debian(tree: Path) -> Iterator[Component]:
    for record in sorted((tree / RECORDS).glob("*")):
        fields = email.message_from_string(record.read_text(encoding="utf-8"))
        name, version = fields["Package"], fields["Version"]
        source = (fields["Source"] or name).partition(" ")[0]
        qualifiers = {"arch": fields["Architecture"], "distro": f"debian-{RELEASE}"}
        yield Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            bom_ref=f"debian/{name}",
            purl=PackageURL("deb", "debian", name, version, qualifiers),
            description=fields["Description"].splitlines()[0],
            properties=[Property(name="debian:source", value=source)],
        )


def distributions(tree: Path) -> Iterator[Component]:
    for metadata in sorted((tree / SITE).glob("*.dist-info/METADATA")):
        fields = email.message_from_string(metadata.read_text(encoding="utf-8"))
        name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
        yield Component(
            name=name,
            version=fields["Version"],
            type=ComponentType.LIBRARY,
            bom_ref=f"pypi/{name}",
            purl=PackageURL("pypi", None, name, fields["Version"]),
            description=fields["Summary"],
            licenses=_licenses(fields),
            external_references=_home(fields),
        )


def _licenses(fields: Message) -> list[object]:
    text = fields["License-Expression"] or _short(fields["License"])
    if text is None:
        prefix = "License :: OSI Approved :: "
        named = (line.removeprefix(prefix) for line in fields.get_all("Classifier", []) if line.startswith(prefix))
        text = next(named, None)
    if not text:
        return []
    return [LICENSES.make_from_string(text, license_acknowledgement=LicenseAcknowledgement.DECLARED)]


def _short(text: str | None) -> str | None:
    """Old metadata may contain the whole text of a licence instead of its name."""
    return text if text and "\n" not in text and text != "UNKNOWN" else None


def _home(fields: Message) -> list[object]:
    links = [line.partition(", ")[2] for line in fields.get_all("Project-URL", [])]
    url = fields["Home-page"] or next(iter(links), None)
    return [ExternalReference(type=ExternalReferenceType.WEBSITE, url=XsUri(url))] if url else []
