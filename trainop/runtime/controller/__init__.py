"""Controllers: event handlers that enqueue keys, the work queue, and workers that call a reconciler.

Data flow: informer event -> `enqueue` (predicates, mapper) -> `WorkQueue` -> worker of a `Controller` -> reconciler.
Beside it: `Expectations`, rate limiters, owner references, finalizers and `create_or_patch`.
"""
