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
    from trainop.runtime.authorize import Authorizer, require_permission
    from trainop.runtime.cache import Cache, CacheError
    from trainop.runtime.client import Client, PatchKind
    from trainop.runtime.clock import Clock, SystemClock
    from trainop.runtime.cluster import ClusterConfig, ConfigError
    from trainop.runtime.conflicts import update
    from trainop.runtime.controller import Controller
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
    from trainop.runtime.expectations import Expectations
    from trainop.runtime.http import HttpTransport
    from trainop.runtime.informer import Handler, Informer
    from trainop.runtime.injection import (
        MUTATING_WEBHOOK_CONFIGURATIONS,
        VALIDATING_WEBHOOK_CONFIGURATIONS,
        Configuration,
    )
    from trainop.runtime.leader import LeaderElector, Timing
    from trainop.runtime.manager import Manager
    from trainop.runtime.metrics import Metrics
    from trainop.runtime.objects import (
        Change,
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
    from trainop.runtime.ratelimit import ExponentialLimiter, RetryLimiter, TokenBucket
    from trainop.runtime.reconcile import DONE, ReconcileError, Reconciler, Result, TerminalError
    from trainop.runtime.recorder import Recorder
    from trainop.runtime.resource import CONFIG_MAPS, NAMESPACES, NODES, PODS, SECRETS, SERVICES, Resource
    from trainop.runtime.rotation import CertificateRotation, RotationOptions
    from trainop.runtime.scope import ALL_OTHERS, Selector
    from trainop.runtime.server import HttpServer, health_application, metrics_application, parse_address
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
    "admission": "AdmissionRequest Verdict allow amend defaulting deny mutating_path validating validating_path",
    "auth": "load_config",
    "authorize": "Authorizer require_permission",
    "cache": "Cache CacheError",
    "client": "Client PatchKind",
    "clock": "Clock SystemClock",
    "cluster": "ClusterConfig ConfigError",
    "conflicts": "update",
    "controller": "Controller",
    "errors": "AlreadyExistsError ApiError ConflictError DecodeError ForbiddenError GoneError InvalidError"
    " LeadershipLostError NotFoundError NotLeaderError TooManyRequestsError UnauthorizedError UnhealthyError",
    "expectations": "Expectations",
    "http": "HttpTransport",
    "informer": "Handler Informer",
    "injection": "Configuration MUTATING_WEBHOOK_CONFIGURATIONS VALIDATING_WEBHOOK_CONFIGURATIONS",
    "leader": "LeaderElector Timing",
    "manager": "Manager",
    "metrics": "Metrics",
    "objects": "Change Json Key Metadata ObjectReference OwnerReference PartialObject Unstructured decode_complete"
    " decode_unstructured owner_reference",
    "owners": "OwnerError set_controller",
    "ratelimit": "ExponentialLimiter RetryLimiter TokenBucket",
    "reconcile": "DONE ReconcileError Reconciler Result TerminalError",
    "recorder": "Recorder",
    "resource": "CONFIG_MAPS NAMESPACES NODES PODS SECRETS SERVICES Resource",
    "rotation": "CertificateRotation RotationOptions",
    "scope": "ALL_OTHERS Selector",
    "server": "HttpServer health_application metrics_application parse_address",
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
    "SECRETS", "SERVICES", "VALIDATING_WEBHOOK_CONFIGURATIONS", "AdmissionRequest", "AlreadyExistsError",
    "ApiError", "Authorizer", "Cache", "CacheError", "CertificateFolder", "CertificateRotation", "Change",
    "Changed", "Client", "Clock", "ClusterConfig", "ConfigError", "Configuration", "ConflictError", "Controller",
    "DecodeError", "EnqueueMapped", "EnqueueObject", "EnqueueOwner", "Expectations", "ExponentialLimiter",
    "ForbiddenError", "GoneError", "Handler", "HttpServer", "HttpTransport", "Informer", "InvalidError", "Json",
    "Key", "LeaderElector", "LeadershipLostError", "Manager", "Mapper", "Matching", "Metadata", "Metrics",
    "NotConnectedError", "NotFoundError", "NotLeaderError", "ObjectReference", "OwnerError", "OwnerReference",
    "Pace", "PartialObject", "PatchKind", "Predicate", "ReconcileError", "Reconciler", "Recorder", "Request",
    "Resource", "Response", "Result", "RetryLimiter", "RotationOptions", "Selector", "ServingCertificate",
    "StallWatch", "Store", "Stream", "SystemClock", "TerminalError", "Timing", "TokenBucket",
    "TooManyRequestsError", "Transport", "UnauthorizedError", "UnhealthyError", "Unstructured", "Urgency",
    "Verdict", "WebhookServer", "WorkQueue", "allow", "amend", "by_controller", "by_label", "by_namespace",
    "decode_complete", "decode_unstructured", "defaulting", "deny", "health_application", "load_config",
    "metrics_application", "mutating_path", "owner_reference", "parse_address", "require_permission",
    "set_controller", "update", "validating", "validating_path",
]
# fmt: on


def __getattr__(name: str) -> Any:
    """Loads what is asked for: a program that only talks to an API server needs no admission server."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
