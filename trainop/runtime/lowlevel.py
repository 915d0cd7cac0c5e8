"""The building blocks below `Operator`, `Controller`, `Cache` and `Client`, which most programs never name.

They are for programs that wire a `Manager` by hand, replace a part (a transport, a rate limiter, metrics), or annotate
what a callback receives. All of them can be imported from `trainop.runtime`, too. In groups:

- requests: `Transport` and what it exchanges, pages of lists, credentials, the limit on the client's side;
- cache and queue: event handlers of an informer, priorities, the queue, the part of an informer that controllers use;
- manager: protocols of what a `Manager` runs, leader election, HTTP servers, limits of the process;
- metrics, events, admission: protocols of the metrics that each part reports to, authorization of scrapes.
"""

from __future__ import annotations

from trainop.runtime import (
    Address,
    Announcer,
    AuthHeaders,
    Authorizer,
    Bindable,
    BindError,
    Checks,
    ClusterConfig,
    Configuration,
    ControllerBuilder,
    ControllerMetrics,
    ControllerOptions,
    Credentials,
    CredentialsCheck,
    Discovery,
    Elector,
    EndlessListError,
    EventClient,
    EventLimits,
    ExponentialLimiter,
    Flushable,
    GroupVersionKind,
    GroupVersionResource,
    Handler,
    HttpServer,
    HttpStream,
    InformerMetrics,
    LeaderElector,
    LeaseClient,
    Limiter,
    Mapper,
    MutationError,
    ObservedQueue,
    Pace,
    Page,
    QueueMetrics,
    RateLimiter,
    Recovery,
    Request,
    RequestMetrics,
    Response,
    ReviewClient,
    Runnable,
    Scope,
    Source,
    StallWatch,
    Steps,
    Stoppable,
    Stream,
    Synced,
    Transport,
    Urgency,
    User,
    WebhookMetrics,
    WorkQueue,
    health_application,
    metrics_application,
    mutating_path,
    parse_address,
    raise_descriptor_limit,
    require_permission,
    return_freed_memory,
    validating_path,
)

# fmt: off
__all__ = [  # noqa: RUF022  # in groups
    # requests
    "ClusterConfig", "Credentials", "CredentialsCheck", "Discovery", "EndlessListError", "HttpStream", "Limiter",
    "Page", "AuthHeaders", "Recovery", "Request", "RequestMetrics", "Response", "Stream", "Transport",
    # cache and queue
    "ControllerBuilder", "ControllerMetrics", "ControllerOptions", "ExponentialLimiter", "Handler", "InformerMetrics",
    "Mapper", "MutationError", "ObservedQueue", "Pace", "QueueMetrics", "RateLimiter", "Scope", "Source", "Steps",
    "Urgency", "WorkQueue",
    # manager
    "Address", "Announcer", "BindError", "Bindable", "Checks", "Elector", "Flushable", "HttpServer", "LeaderElector",
    "LeaseClient", "Runnable", "StallWatch", "Stoppable", "Synced", "health_application", "metrics_application",
    "parse_address", "raise_descriptor_limit", "return_freed_memory",
    # metrics, events, admission
    "Authorizer", "Configuration", "EventClient", "EventLimits", "GroupVersionKind", "GroupVersionResource",
    "ReviewClient", "User", "WebhookMetrics", "mutating_path", "require_permission", "validating_path",
]
# fmt: on
