"""One page of `docs/kinds/`, from the kind's `Framework` and its example."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import trainop.kinds
from e2e.docs.rules import refusals, rules
from e2e.docs.samples import ROOT, example, plain_job, table
from trainop.engine import extensions
from trainop.engine.framework import Framework, Replicas
from trainop.engine.job import Job, Role
from trainop.engine.manifests import Manifests
from trainop.engine.parse import parse
from trainop.engine.schema.crd import crd
from trainop.engine.seen import Options
from trainop.runtime.objects.metadata import Json, Unstructured

HEADER = "<!-- Written by `make docs` from the values that run; changes belong there or into e2e/docs. -->\n"
DEEPEST = {"template", "metadata", "metrics", "status"}
"""Fields whose inside other pages describe."""

LONG = 100
"""Characters of a value that need not be shown of every replica."""

ANNOTATIONS = {
    extensions.RESTART_SCOPE: "`pod`, `role` or `job`: what is restarted when a pod is. `pod` if not given; the "
    "others delete all pods of the role or job, wait until they are gone, make them anew, and count one restart.",
    extensions.SERVICE_MODE: "`replica` or `leader`: which replicas get a service. `leader` makes only those that "
    "others have to find. As the operator's `--service-mode` if not given.",
    extensions.INFRA_RESTART_LIMIT: "A number: how many restarts through eviction, preemption or the loss of a node "
    "the job survives. No limit if not given; `backoffLimit` counts failures of the program only.",
}


def page(framework: Framework) -> str:
    """The page of one kind."""
    file, raw = example(framework)
    job = parse(framework, Unstructured(raw))
    module = next(module for module in kinds() if framework in module.__dict__.values())
    summary = ast.get_docstring(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))) or ""
    parts = [
        f"# {framework.kind}\n\n{summary.splitlines()[0]}\n\n{table(facts(framework))}",
        f"## Replica types\n\n{table(replica_types(framework), 'type', 'how many', 'with `job-role: master`')}",
        f"## Fields of this kind\n\n{table(own_fields(framework), 'field', 'type', 'meaning')}",
        f"## Fields of every kind\n\n{table(common_fields(framework), 'field', 'type', 'meaning')}",
        f"## Annotations of every kind\n\n{table(code(ANNOTATIONS.items()), 'annotation', 'meaning')}",
        f"## Environment\n\n{environment(framework, job)}",
        f"## When it runs, succeeds and fails\n\n{rules(framework)}",
        f"## What is refused\n\n{refusals(framework)}",
        f"## Example\n\n{show_example(file)}",
    ]
    return HEADER + "\n" + "\n".join(part.rstrip() + "\n" for part in parts)


def kinds() -> Iterator[Any]:
    for info in pkgutil.iter_modules(trainop.kinds.__path__):
        yield importlib.import_module(f"trainop.kinds.{info.name}")


# Tables ---------------------------------------------------------------------------------------------------------------


def code(rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for first, second in rows:
        yield f"`{first}`", second


def facts(framework: Framework) -> Iterator[tuple[str, str]]:
    resource = framework.resource
    yield "apiVersion, resource", f"`{resource.api_version}`, `{resource.plural}`"
    yield "replicas", f"`spec.{framework.replica_specs}`"
    yield "container", f"`{framework.container}`: its ports are the services', its exit code decides under `ExitCode`"
    yield "port", f"`{framework.port_name}`, {framework.port} unless the container has a port of this name"
    yield "default restartPolicy", f"`{framework.restart_policy}`"
    yield "scale subresource", "`kubectl scale` changes `Worker`" if framework.scale else "no"
    yield "events come from", f"`{framework.controller}`, also the label `training.kubeflow.org/operator-name`"
    yield "metrics", f'`framework="{framework.name}"`'


def replica_types(framework: Framework) -> Iterator[tuple[str, str, str]]:
    for type_, limits in framework.roles.items():
        needed = ", required" if type_ in framework.required_roles else ""
        yield f"`{type_}`", how_many(limits) + needed, leaders(framework, type_)


def how_many(limits: Replicas) -> str:
    if limits.most is not None:
        return f"{limits.most}" if limits.least == limits.most else f"{limits.least} to {limits.most}"
    return f"{limits.least} or more" if limits.least else "any number"


def leaders(framework: Framework, type_: str) -> str:
    """Of a role that is alone, and of one beside all others."""
    alone, among = (
        {index: is_master(framework, roles, type_, index) for index in (0, 1)} for roles in shapes(framework, type_)
    )
    words = {(True, True): "all", (True, False): "the first", (False, False): "none"}
    first, second = (words[found[0], found[1]] for found in (alone, among))
    return first if first == second else f"{second}; {first} if alone"


def shapes(framework: Framework, type_: str) -> tuple[list[str], list[str]]:
    return [type_], list(framework.roles)


def is_master(framework: Framework, types: Iterable[str], type_: str, index: int) -> bool:
    job = plain_job(framework, types)
    role = job.role(type_)
    assert role is not None
    return framework.is_master(job, role, index)


# Fields ---------------------------------------------------------------------------------------------------------------


def spec_schema(framework: Framework) -> Json:
    schema: Json = crd(framework)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def own_fields(framework: Framework) -> Iterator[tuple[str, str, str]]:
    properties = spec_schema(framework)["properties"]
    required = spec_schema(framework)["required"]
    for name in framework.spec_fields:
        for path, type_, text in described(f"spec.{name}", properties[name]):
            yield path, type_, text + (" Required." if name in required and path == f"`spec.{name}`" else "")


def common_fields(framework: Framework) -> Iterator[tuple[str, str, str]]:
    properties = spec_schema(framework)["properties"]
    role = properties[framework.replica_specs]["additionalProperties"]
    yield from described(f"spec.{framework.replica_specs}.<type>", role)
    yield from described("spec.runPolicy", properties["runPolicy"])


def described(path: str, schema: Json) -> Iterator[tuple[str, str, str]]:
    """The field and those in it, outside first."""
    inner = schema.get("items", schema)
    kind = f"list of {inner['type']}s" if "items" in schema else schema.get("format") or schema["type"]
    default = f" Default: `{str(schema['default']).lower()}`." if "default" in schema else ""
    yield f"`{path}`", kind, schema["description"] + default
    if path.rpartition(".")[2] in DEEPEST:
        return
    step = "[]" if "items" in schema else ""
    for name, field in inner.get("properties", {}).items():
        yield from described(f"{path}{step}.{name}", field)


# What replicas find ---------------------------------------------------------------------------------------------------


def environment(framework: Framework, job: Job) -> str:
    """The variables that the replicas of the example find, told once where all find the same."""
    where = "every container of the pods" if framework.env_everywhere else f"the container `{framework.container}`"
    manifests = Manifests(framework, job, Options())
    found = {
        f"{role.label}-{index}": variables(framework, manifests, role, index)
        for role in job.roles
        for index in range(role.replicas)
    }
    shared = dict(set.intersection(*(set(one.items()) for one in found.values())))
    first = next(iter(found.values()))
    same = [f"{name}={value}" for name, value in first.items() if name in shared]
    text = f"The operator adds to {where}, behind the user's own variables; here as in the example below.\n"
    if same:
        text += "\nThe same in all replicas:\n\n" + block(same)
    *_, last = found
    own = [
        f"{pod}: {name}={value}"
        for pod, one in found.items()
        for name, value in one.items()
        if name not in shared and (len(value) < LONG or pod == last)
    ]
    text += "\nOf each replica's own (long values only of the last):\n\n" + block(own)
    initial = {
        c["name"] for role in job.roles for c in json.loads(manifests.pod(role, 0))["spec"].get("initContainers", ())
    }
    if initial:
        text += f"\nWorkers also get the init container `{', '.join(sorted(initial))}`, which waits for the master.\n"
    return text + NOTES.get(framework.kind, "")


def variables(framework: Framework, manifests: Manifests, role: Role, index: int) -> dict[str, str]:
    pod = json.loads(manifests.pod(role, index))
    container = next(c for c in pod["spec"]["containers"] if c["name"] == framework.container)
    return {v["name"]: v.get("value") or f"<{v['valueFrom']['fieldRef']['fieldPath']}>" for v in container["env"]}


def block(lines: Iterable[str]) -> str:
    return "```\n" + "".join(f"{line}\n" for line in lines) + "```\n"


NOTES = {
    "TFJob": """
A job of a single replica gets no TF_CONFIG. With `enableDynamicWorker: true` it has the sparse form: workers know only
themselves and the parameter servers.

A `cluster` of more than 100 KiB does not fit into an environment. It stands in a file then, which all pods mount from
one ConfigMap, and `TF_CONFIG` has the path of the file in its place:

```python
config = json.loads(os.environ["TF_CONFIG"])
cluster = config["cluster"]
if isinstance(cluster, str):
    cluster = json.loads(pathlib.Path(cluster).read_text())
    os.environ["TF_CONFIG"] = json.dumps({**config, "cluster": cluster})  # TensorFlow reads it in this process
```
""",
    "PyTorchJob": """
`RANK` and `WORLD_SIZE` are what programs find that are started without torchrun; with `nprocPerNode` a number,
`WORLD_SIZE` counts processes while `RANK` stays that of the node, as upstream. torchrun reads the `PET_*` variables.
With an `elasticPolicy` these are `PET_RDZV_ENDPOINT`, `PET_RDZV_BACKEND`, `PET_NNODES=min:max`, and as given
`PET_MAX_RESTARTS`, `PET_RDZV_ID`, `PET_RDZV_CONF` and `PET_STANDALONE`; with `metrics` in it a HorizontalPodAutoscaler
of the job's name scales the workers.
""",
    "PaddleJob": """
With a `Master` role these are parameter servers: `PADDLE_MASTER` is the first master, masters have
`PADDLE_SERVER_NUM=1` and workers `PADDLE_TRAINER_NUM=1`. The elastic policy is checked, and has no other effect, as
upstream.
""",
    "XGBoostJob": """
XGBoost's tracker and LightGBM's list of machines are made of the same variables. A master alone has no `WORKER_*`.
""",
    "MXJob": """
A template's annotation `tuner-server-key` is repeated as the label of its role in `MX_CONFIG`, for tuning jobs.
""",
}


def show_example(file: Path) -> str:
    path = file.relative_to(ROOT)
    module = ".".join(path.with_suffix("").parts)
    text = ast.get_docstring(ast.parse((file.with_suffix(".py")).read_text(encoding="utf-8"))) or ""
    yaml_text = file.read_text(encoding="utf-8")
    return f"`trainop run {path}` runs `{module}`:\n\n```yaml\n{yaml_text}```\n\n> {quoted(text)}\n"


def quoted(text: str) -> str:
    """The prose of a program's docstring."""
    return "\n> ".join(line for line in text.splitlines() if line and not line.startswith(("    ", "--")))
