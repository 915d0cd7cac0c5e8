"""An API server in one process: an imitation of kube-apiserver over an in-memory store, reached by HTTP or by a call.

Packages in the order of a request: `serving` (HTTP, routing, discovery) -> `request` (verbs) -> `registry` (kinds and
their strategies), `schema` (CRD schemas), `fields` (patches, server-side apply) -> `storage`. `printing` makes Tables.
`background` has the controllers that listen to the store, such as the garbage collector.
"""
