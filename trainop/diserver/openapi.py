"""The OpenAPI document, generated from the types that validate, and a page that shows it without any other file."""

from __future__ import annotations

from typing import Any

import msgspec

import trainop
from trainop.diserver.bodies import FailedRequest, ReplicasRequest
from trainop.diserver.query import PARAMETERS
from trainop.diserver.replies import CREATED, DELETED, GOT, RECREATED, Envelope, PodFacts, Replicas

ERRORS = {
    "400": "A parameter, the body or the demand is invalid, or the job is finished.",
    "403": "The caller may not change the replicas of this job.",
    "404": "A pod, job or AggregatorConfig does not exist.",
    "408": "The body was not received in time.",
    "413": "The body is too long.",
    "429": "The caller sends too many requests.",
    "500": "The API server refused or failed.",
    "503": "The server is starting or stopping.",
}
_READ_ERRORS = ("400", "404", "429", "500", "503")
_PREFIX = "#/components/schemas/{name}"


def document(max_body: int) -> bytes:
    """The document as JSON."""
    _, schemas = msgspec.json.schema_components(
        (Envelope, Replicas, PodFacts, ReplicasRequest, FailedRequest), ref_template=_PREFIX
    )
    replicas = {
        "get": _operation(
            "The replicas of a coordinator, an aggregator, a namespace or all namespaces.",
            GOT,
            [_reference("Replicas"), {"type": "array", "items": _reference("Replicas")}, _reference("PodFacts")],
            _READ_ERRORS,
            parameters=[_parameter(name) for name in PARAMETERS],
        ),
        "post": _operation("Creates replicas.", CREATED, [_reference("Replicas")], body="ReplicasRequest"),
        "delete": _operation("Deletes replicas.", DELETED, [_reference("Replicas")], body="ReplicasRequest"),
    }
    failed = {
        "post": _operation("Replaces failed replicas.", RECREATED, [_reference("Replicas")], body="FailedRequest")
    }
    described = {
        "openapi": "3.1.0",
        "info": {
            "title": "di-server",
            "version": trainop.__version__,
            "description": f"Replicas of DIJobs. Bodies are at most {max_body} bytes long.",
        },
        "paths": {"/v1alpha1/replicas": replicas, "/v1alpha1/replicas/failed": failed},
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }
    return msgspec.json.encode(described)


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": _PREFIX.format(name=name)}


def _parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}


def _operation(
    summary: str,
    message: str,
    data: list[dict[str, Any]],
    errors: tuple[str, ...] = tuple(ERRORS),
    *,
    body: str = "",
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": _response(message, data)}
    nothing = [{"type": "null"}] if not body else [_reference("Replicas")]
    responses |= {code: _response(ERRORS[code], nothing) for code in errors}
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if parameters:
        operation["parameters"] = parameters
    if body:
        schema = {"anyOf": [_reference(body), {"type": "null"}]}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _response(description: str, data: list[dict[str, Any]]) -> dict[str, Any]:
    schema = {"allOf": [_reference("Envelope")], "properties": {"data": {"anyOf": data}}}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>di-server</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h2 { font: bold 1rem monospace; border-top: 1px solid #ccc; padding-top: 1rem }
table { border-collapse: collapse } td { padding: .1rem 1rem .1rem 0; vertical-align: top }
pre { background: #f4f4f4; padding: 1rem; overflow: auto }
</style></head><body>
<h1>di-server</h1><p id="about"></p><div id="paths"></div><h1>Schemas</h1><div id="schemas"></div>
<script>
const add = (to, tag, text) => { const e = document.createElement(tag); e.textContent = text; to.append(e); return e };
fetch("/openapi.json").then(r => r.json()).then(api => {
  document.getElementById("about").textContent = api.info.description;
  const paths = document.getElementById("paths");
  for (const [path, methods] of Object.entries(api.paths)) for (const [method, o] of Object.entries(methods)) {
    add(paths, "h2", method.toUpperCase() + " " + path);
    add(paths, "p", o.summary);
    for (const p of o.parameters || []) add(paths, "code", p.name + " ");
    const body = o.requestBody && o.requestBody.content["application/json"].schema.anyOf[0].$ref.split("/").pop();
    if (body) add(paths, "p", "Body: " + body);
    const table = add(paths, "table", "");
    for (const [code, r] of Object.entries(o.responses)) {
      const row = add(table, "tr", ""); add(row, "td", code); add(row, "td", r.description);
    }
  }
  const schemas = document.getElementById("schemas");
  for (const [name, schema] of Object.entries(api.components.schemas)) {
    add(schemas, "h2", name); add(schemas, "pre", JSON.stringify(schema, null, 2));
  }
});
</script></body></html>
"""
"""Shows `/openapi.json`."""
