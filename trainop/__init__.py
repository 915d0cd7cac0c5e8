"""A Kubernetes operator for Kubeflow v1 training jobs, and an embedded cluster that runs them on one machine.

`runtime`      asyncio library for controllers: client, informers, work queues, manager. Independent of job kinds.
`kinds`        one declarative module per job kind.
`engine`       pure functions from a snapshot of a job and its children to a plan (actions and status).
`controllers`  the reconciler that all kinds share: observe, plan, apply, report.
`local`        an embedded cluster: API server with watch, and a node that runs pods as processes.
`operator`     the composition root: builds a manager with all controllers from `Settings`.
`cli`, `run`   the command-line interface.

Data flow: watch event -> store -> queue -> observe -> plan -> status and actions -> report.
"""

__version__ = "0.1.0"
