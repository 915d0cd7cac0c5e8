"""Generates `trainop/local/api/registry/protobuf.json`: the protobuf field numbers of the built-in kinds.

    python e2e/protobuf_fields.py       needs the Go modules of the test cluster (python -m e2e.cluster build)

Source: the struct tags of the Go types (`k8s.io/api/*/v1/types.go`, Apache-2.0). The file contains the messages that
the kinds below refer to, one per line. Each field has number, name, type and form. The form is `list` or `map`;
`kept` if an empty value is encoded in JSON (a pointer in Go, or a text, number or bool without omitempty); or
`inline` if the fields of the message belong to the enclosing message.
"""

import json
import re
import subprocess
from pathlib import Path

from e2e.cluster.places import HERE
from e2e.cluster.releases import OLDEST

TARGET = Path(__file__).parents[1] / "trainop" / "local" / "api" / "registry" / "protobuf.json"
PACKAGES = {
    "core": "k8s.io/api/core/v1",
    "apps": "k8s.io/api/apps/v1",
    "batch": "k8s.io/api/batch/v1",
    "autoscaling": "k8s.io/api/autoscaling/v2",
    "autoscalingv1": "k8s.io/api/autoscaling/v1",
    "coordination": "k8s.io/api/coordination/v1",
    "discovery": "k8s.io/api/discovery/v1",
    "events": "k8s.io/api/events/v1",
    "policy": "k8s.io/api/policy/v1",
    "rbac": "k8s.io/api/rbac/v1",
    "scheduling": "k8s.io/api/scheduling/v1",
    "admissionregistration": "k8s.io/api/admissionregistration/v1",
    "authentication": "k8s.io/api/authentication/v1",
    "authorization": "k8s.io/api/authorization/v1",
    "meta": "k8s.io/apimachinery/pkg/apis/meta/v1",
}
KINDS = {
    "core": "Pod Service ConfigMap Secret Event Node ServiceAccount Namespace PersistentVolumeClaim Endpoints "
    "ResourceQuota Binding",
    "apps": "Deployment",
    "batch": "Job",
    "autoscaling": "HorizontalPodAutoscaler",
    "autoscalingv1": "Scale",
    "coordination": "Lease",
    "discovery": "EndpointSlice",
    "events": "Event",
    "policy": "Eviction",
    "rbac": "Role RoleBinding ClusterRole ClusterRoleBinding",
    "scheduling": "PriorityClass",
    "admissionregistration": "MutatingWebhookConfiguration ValidatingWebhookConfiguration",
    "authentication": "TokenRequest TokenReview SelfSubjectReview",
    "authorization": "SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview LocalSubjectAccessReview",
    "meta": "DeleteOptions",
}
SCALARS = {"string": "text", "bool": "bool", "int32": "int", "int64": "int", "int": "int", "uint32": "int"} | {
    "[]byte": "bytes",
    "metav1.Time": "Time",
    "metav1.MicroTime": "MicroTime",
    "Time": "Time",
    "MicroTime": "MicroTime",
    "resource.Quantity": "Quantity",
    "intstr.IntOrString": "IntOrString",
    "runtime.RawExtension": "Json",
    "metav1.FieldsV1": "Json",
    "FieldsV1": "Json",
}
IMPORTS = {"v1": "core", "apiv1": "core", "corev1": "core", "metav1": "meta"}
FIELD = re.compile(
    r'^\t(?:(?P<name>\w+)\s+)?(?P<type>[\w.*\[\]]+)\s+`json:"(?P<json>[^"]*)"[^`]*protobuf:"\w+,(?P<number>\d+),'
)
Field = tuple[int, str, str, str]


def folder_of(package: str) -> Path:
    module = "k8s.io/" + package.split("/")[1]
    done = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", module],
        cwd=HERE / "go" / OLDEST.module,
        check=True,
        capture_output=True,
        text=True,
    )
    return Path(done.stdout.strip()) / package.removeprefix(f"{module}/")


class Package:
    """The types of one Go package: bodies of structs, and targets of other named types."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        text = "\n".join(file.read_text() for file in sorted(folder_of(path).glob("*types.go")))
        self.structs = dict(re.findall(r"^type (\w+) struct \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))
        self.aliases = dict(re.findall(r"^type (\w+) ([\w.*\[\]]+)$", text, re.MULTILINE))


def message_of(package: Package, packages: dict[str, Package], struct: str) -> list[Field]:
    fields: list[Field] = []
    for line in package.structs[struct].splitlines():
        if (found := FIELD.match(line)) and "ExtraValue" not in found["type"]:  # in review kinds only, and not read
            name, _, options = found["json"].partition(",")
            type_, form = resolve(package, packages, found["type"])
            if options.startswith("inline"):
                form = "inline"
            elif not form and (
                found["type"].startswith("*") or (type_ in {"text", "int", "bool"} and "omit" not in options)
            ):
                form = "kept"
            fields.append((int(found["number"]), name, type_, form))
    return sorted(fields)


def resolve(package: Package, packages: dict[str, Package], written: str) -> tuple[str, str]:
    """The type and form for a Go type expression."""
    written = written.removeprefix("*")
    if written in SCALARS:
        return SCALARS[written], ""
    for mark, form in (("map[string]", "map"), ("map[ResourceName]", "map"), ("[]", "list")):
        if written.startswith(mark):
            return resolve(package, packages, written.removeprefix(mark))[0], form
    prefix, _, name = written.rpartition(".")
    if prefix:
        return ("text", "") if prefix == "types" else resolve(packages[IMPORTS[prefix]], packages, name)
    if name in package.aliases:
        return resolve(package, packages, package.aliases[name])
    return f"{package.name}.{name}", ""


def main() -> None:
    packages = {name: Package(name, path) for name, path in PACKAGES.items()}
    kept: dict[str, list[Field]] = {}
    wanted = [f"{package}.{kind}" for package, kinds in KINDS.items() for kind in kinds.split()]
    while wanted:
        name = wanted.pop()
        if name not in kept:
            package, _, struct = name.partition(".")
            kept[name] = message_of(packages[package], packages, struct)
            wanted += [field[2] for field in kept[name] if "." in field[2]]
    lines = [f"{json.dumps(name)}:{json.dumps(kept[name], separators=(',', ':'))}" for name in sorted(kept)]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
