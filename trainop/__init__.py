"""One Kubernetes operator for every v1 training job, and a laptop cluster to try them on.

`runtime`      controller-runtime in asyncio: client, informers, work queues, controllers, manager. Knows no job.
`engine`       pure: one snapshot of a job and its children in, one plan (actions and status) out.
`controllers`  one declarative file per kind, and the shell they share: observe, plan, apply, report.
`local`        a cluster in one process: an API server with watch, and a node that runs pods as processes.
`operator`     the composition root: settings in, a manager with all controllers out.
`run`, `cli`   what people type.

Data flows one way: watch line -> store -> queue -> observe -> plan -> status and actions -> report.
"""

__version__ = "0.1.0"
