"""controller-runtime in asyncio: what a Kubernetes controller needs, and nothing about jobs.

The nouns in the order of the data flow: `Resource`, `Client`, `Informer`, `Cache`, `WorkQueue`, `Controller`,
`Manager`; beside them `Expectations`, `Recorder`, `LeaderElector`, `Metrics`, `WebhookServer`, `CertificateRotation`.
Below them a `Transport` carries requests; `watcher` decides what an informer does next.

All that is public can be imported from here, and is loaded when it is asked for. `docs/runtime.md` tells how it fits
together, what is guaranteed and what is not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainop.runtime.admission import (
        AdmissionRequest,
        GroupVersionKind,
        GroupVersionResource,
        Verdict,
        allow,
        amend,
        defaulting,
        deny,
        mutating_path,
        validating,
        validating_path,
    )
    from trainop.runtime.auth import load_config
    from trainop.runtime.authorize import Authorizer, ReviewClient, User, require_permission
    from trainop.runtime.cache import Cache, CacheError
    from trainop.runtime.client import Client, Listing, Page, PatchKind
    from trainop.runtime.clock import Clock, SystemClock
    from trainop.runtime.cluster import ClusterConfig, ConfigError, Credentials, Proof
    from trainop.runtime.conflicts import update
    from trainop.runtime.controller import Controller, Source
    from trainop.runtime.correlator import EventLimits
    from trainop.runtime.discovery import Discovery
    from trainop.runtime.errors import (
        AlreadyExistsError,
        ApiError,
        ConflictError,
        DecodeError,
        ForbiddenError,
        GoneError,
        InvalidError,
        LeadershipLostError,
        NotFoundError,
        NotLeaderError,
        TooManyRequestsError,
        UnauthorizedError,
        UnhealthyError,
    )
    from trainop.runtime.expectations import Expectations, Steps
    from trainop.runtime.guard import MutationError
    from trainop.runtime.http import HttpStream, HttpTransport
    from trainop.runtime.identity import CredentialsCheck
    from trainop.runtime.informer import Handler, Informer
    from trainop.runtime.injection import (
        MUTATING_WEBHOOK_CONFIGURATIONS,
        VALIDATING_WEBHOOK_CONFIGURATIONS,
        Configuration,
    )
    from trainop.runtime.leader import Announcer, LeaderElector, LeaseClient, Timing
    from trainop.runtime.logs import configure_logging
    from trainop.runtime.manager import Bindable, Elector, Flushable, Manager, Runnable, Stoppable, Synced
    from trainop.runtime.measured import InformerMetrics
    from trainop.runtime.metrics import ControllerMetrics, Metrics, ObservedQueue, QueueMetrics, WebhookMetrics
    from trainop.runtime.objects import (
        Change,
        Decoder,
        HasMetadata,
        Json,
        Key,
        Metadata,
        ObjectReference,
        OwnerReference,
        PartialObject,
        Unstructured,
        decode_complete,
        decode_unstructured,
        owner_reference,
    )
    from trainop.runtime.owners import OwnerError, set_controller
    from trainop.runtime.paging import EndlessListError
    from trainop.runtime.process import raise_descriptor_limit, return_freed_memory
    from trainop.runtime.ratelimit import ExponentialLimiter, RateLimiter, RetryLimiter, TokenBucket
    from trainop.runtime.reconcile import DONE, ReconcileError, Reconciler, Result, TerminalError
    from trainop.runtime.recorder import EventClient, Recorder
    from trainop.runtime.recovery import Recovery
    from trainop.runtime.resource import CONFIG_MAPS, NAMESPACES, NODES, PODS, SECRETS, SERVICES, Resource
    from trainop.runtime.rotation import CertificateRotation, RotationOptions
    from trainop.runtime.scope import ALL_OTHERS, Scope, Selector
    from trainop.runtime.sender import Limiter, RequestMetrics
    from trainop.runtime.server import (
        Address,
        BindError,
        Checks,
        HttpServer,
        health_application,
        metrics_application,
        parse_address,
    )
    from trainop.runtime.serving import CertificateFolder, ServingCertificate
    from trainop.runtime.stalls import StallWatch
    from trainop.runtime.store import Store, by_controller, by_label, by_namespace
    from trainop.runtime.transport import NotConnectedError, Request, Response, Stream, Transport
    from trainop.runtime.watch import (
        Changed,
        EnqueueMapped,
        EnqueueObject,
        EnqueueOwner,
        Mapper,
        Matching,
        Pace,
        Predicate,
        Urgency,
    )
    from trainop.runtime.webhook import WebhookServer
    from trainop.runtime.workqueue import WorkQueue

_PLACES = {
    "admission": "AdmissionRequest GroupVersionKind GroupVersionResource Verdict allow amend defaulting deny"
    " mutating_path validating validating_path",
    "auth": "load_config",
    "authorize": "Authorizer ReviewClient User require_permission",
    "cache": "Cache CacheError",
    "client": "Client Listing Page PatchKind",
    "clock": "Clock SystemClock",
    "cluster": "ClusterConfig ConfigError Credentials Proof",
    "conflicts": "update",
    "controller": "Controller Source",
    "correlator": "EventLimits",
    "process": "raise_descriptor_limit return_freed_memory",
    "discovery": "Discovery",
    "errors": "AlreadyExistsError ApiError ConflictError DecodeError ForbiddenError GoneError InvalidError"
    " LeadershipLostError NotFoundError NotLeaderError TooManyRequestsError UnauthorizedError"
    " UnhealthyError",
    "expectations": "Expectations Steps",
    "guard": "MutationError",
    "http": "HttpStream HttpTransport",
    "identity": "CredentialsCheck",
    "informer": "Handler Informer",
    "injection": "Configuration MUTATING_WEBHOOK_CONFIGURATIONS VALIDATING_WEBHOOK_CONFIGURATIONS",
    "leader": "Announcer LeaderElector LeaseClient Timing",
    "logs": "configure_logging",
    "manager": "Bindable Elector Flushable Manager Runnable Stoppable Synced",
    "measured": "InformerMetrics",
    "metrics": "ControllerMetrics Metrics ObservedQueue QueueMetrics WebhookMetrics",
    "objects": "Change Decoder HasMetadata Json Key Metadata ObjectReference OwnerReference PartialObject"
    " Unstructured decode_complete decode_unstructured owner_reference",
    "owners": "OwnerError set_controller",
    "paging": "EndlessListError",
    "ratelimit": "ExponentialLimiter RateLimiter RetryLimiter TokenBucket",
    "reconcile": "DONE ReconcileError Reconciler Result TerminalError",
    "recorder": "EventClient Recorder",
    "recovery": "Recovery",
    "resource": "CONFIG_MAPS NAMESPACES NODES PODS SECRETS SERVICES Resource",
    "rotation": "CertificateRotation RotationOptions",
    "scope": "ALL_OTHERS Scope Selector",
    "sender": "Limiter RequestMetrics",
    "server": "Address BindError Checks HttpServer health_application metrics_application parse_address",
    "serving": "CertificateFolder ServingCertificate",
    "stalls": "StallWatch",
    "store": "Store by_controller by_label by_namespace",
    "transport": "NotConnectedError Request Response Stream Transport",
    "watch": "Changed EnqueueMapped EnqueueObject EnqueueOwner Mapper Matching Pace Predicate Urgency",
    "webhook": "WebhookServer",
    "workqueue": "WorkQueue",
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names.split()}

# fmt: off
__all__ = [
    "ALL_OTHERS", "CONFIG_MAPS", "DONE", "MUTATING_WEBHOOK_CONFIGURATIONS", "NAMESPACES", "NODES", "PODS",
    "SECRETS", "SERVICES", "VALIDATING_WEBHOOK_CONFIGURATIONS", "Address", "AdmissionRequest",
    "AlreadyExistsError", "Announcer", "ApiError", "Authorizer", "BindError", "Bindable", "Cache", "CacheError",
    "CertificateFolder", "CertificateRotation", "Change", "Changed", "Checks", "Client", "Clock", "ClusterConfig",
    "ConfigError", "Configuration", "ConflictError", "Controller", "ControllerMetrics", "Credentials",
    "CredentialsCheck", "DecodeError", "Decoder", "Discovery", "Elector", "EndlessListError", "EnqueueMapped",
    "EnqueueObject", "EnqueueOwner", "EventClient", "EventLimits", "Expectations", "ExponentialLimiter",
    "Flushable", "ForbiddenError", "GoneError", "GroupVersionKind", "GroupVersionResource", "Handler",
    "HasMetadata", "HttpServer", "HttpStream", "HttpTransport", "Informer", "InformerMetrics", "InvalidError",
    "Json", "Key", "LeaderElector", "LeadershipLostError", "LeaseClient", "Limiter", "Listing", "Manager",
    "Mapper", "Matching", "Metadata", "Metrics", "MutationError", "NotConnectedError", "NotFoundError",
    "NotLeaderError", "ObjectReference", "ObservedQueue", "OwnerError", "OwnerReference", "Pace", "Page",
    "PartialObject", "PatchKind", "Predicate", "Proof", "QueueMetrics", "RateLimiter", "ReconcileError",
    "Reconciler", "Recorder", "Recovery", "Request", "RequestMetrics", "Resource", "Response", "Result",
    "RetryLimiter", "ReviewClient", "RotationOptions", "Runnable", "Scope", "Selector", "ServingCertificate",
    "Source", "StallWatch", "Steps", "Stoppable", "Store", "Stream", "Synced", "SystemClock", "TerminalError",
    "Timing", "TokenBucket", "TooManyRequestsError", "Transport", "UnauthorizedError", "UnhealthyError",
    "Unstructured", "Urgency", "User", "Verdict", "WebhookMetrics", "WebhookServer", "WorkQueue", "allow", "amend",
    "by_controller", "by_label", "by_namespace", "configure_logging", "decode_complete", "decode_unstructured",
    "defaulting", "deny", "health_application", "load_config", "metrics_application", "mutating_path",
    "owner_reference", "parse_address", "raise_descriptor_limit", "require_permission",
    "return_freed_memory", "set_controller", "update",
    "validating", "validating_path",
]
# fmt: on


def __getattr__(name: str) -> Any:
    """Loads what is asked for: a program that only talks to an API server needs no admission server."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
