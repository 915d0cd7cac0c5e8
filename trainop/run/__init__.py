"""The commands `trainop run` and `trainop cluster`: the operator and an embedded cluster in one process.

`documents` and `check` read and validate manifests, `session` starts cluster and operator, `apply` creates the objects,
`follow` watches the jobs, and `screen`, `logview` and `output` print their state and logs.
"""
