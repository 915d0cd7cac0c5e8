"""An asyncio library for Kubernetes controllers, modelled on controller-runtime. It is independent of job kinds.

Main classes in the order of the data flow: `Transport`, `Client`, `Informer`, `Cache`, `WorkQueue`, `Controller`,
`Manager`; in addition `Expectations`, `Recorder`, `LeaderElector`, `Metrics`, `WebhookServer`, `CertificateRotation`.
`Operator` builds and connects them; `lowlevel` groups the names that most programs do not need.

All public names can be imported from this package and are loaded on first use. `docs/runtime.md` describes how they
work together, and the guarantees and limitations.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainop.runtime.builder.context import Context, OperatorParts, Watch
    from trainop.runtime.builder.controller import ControllerBuilder, ControllerOptions
    from trainop.runtime.builder.operator import LeaderElection, Operator
    from trainop.runtime.cache.cache import Cache, CacheError
    from trainop.runtime.cache.informer import Handler, Informer
    from trainop.runtime.cache.informer_metrics import InformerMetrics
    from trainop.runtime.cache.mutation_detector import MutationError
    from trainop.runtime.cache.scope import ALL_OTHERS, Scope, Selector
    from trainop.runtime.cache.store import Store, by_controller, by_label, by_namespace
    from trainop.runtime.client.auth import load_config
    from trainop.runtime.client.client import Client, Listing, Page, PatchKind
    from trainop.runtime.client.cluster import AuthHeaders, ClusterConfig, ConfigError, Credentials
    from trainop.runtime.client.conflicts import update
    from trainop.runtime.client.discovery import Discovery
    from trainop.runtime.client.http import HttpStream, HttpTransport
    from trainop.runtime.client.identity import CredentialsCheck
    from trainop.runtime.client.paging import EndlessListError
    from trainop.runtime.client.recovery import Recovery
    from trainop.runtime.client.sender import Limiter, RequestMetrics
    from trainop.runtime.client.transport import NotConnectedError, Request, Response, Stream, Transport
    from trainop.runtime.clock import Clock, SystemClock
    from trainop.runtime.controller.controller import Controller, Source
    from trainop.runtime.controller.create_or_patch import OperationResult, create_or_patch
    from trainop.runtime.controller.enqueue import (
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
    from trainop.runtime.controller.expectations import Expectations, Steps
    from trainop.runtime.controller.finalizers import finalizing
    from trainop.runtime.controller.owners import OwnerError, set_controller
    from trainop.runtime.controller.ratelimit import ExponentialLimiter, RateLimiter, RetryLimiter, TokenBucket
    from trainop.runtime.controller.reconcile import DONE, Reconciler, Result
    from trainop.runtime.controller.workqueue import WorkQueue
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
        ReconcileError,
        TerminalError,
        TooManyRequestsError,
        UnauthorizedError,
        UnhealthyError,
    )
    from trainop.runtime.events.correlator import EventLimits
    from trainop.runtime.events.recorder import EventClient, Recorder
    from trainop.runtime.manager.leader import Announcer, LeaderElector, LeaseClient, Timing
    from trainop.runtime.manager.logs import configure_logging
    from trainop.runtime.manager.manager import Bindable, Elector, Flushable, Manager, Runnable, Stoppable, Synced
    from trainop.runtime.manager.stalls import StallWatch
    from trainop.runtime.metrics.authorize import Authorizer, ReviewClient, User, require_permission
    from trainop.runtime.metrics.metrics import ControllerMetrics, Metrics, ObservedQueue, QueueMetrics, WebhookMetrics
    from trainop.runtime.objects.metadata import (
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
    from trainop.runtime.objects.resource import CONFIG_MAPS, NAMESPACES, NODES, PODS, SECRETS, SERVICES, Resource
    from trainop.runtime.process import raise_descriptor_limit, return_freed_memory
    from trainop.runtime.serving.certificate_folder import CertificateFolder, ServingCertificate
    from trainop.runtime.serving.server import (
        Address,
        BindError,
        Checks,
        HttpServer,
        health_application,
        metrics_application,
        parse_address,
    )
    from trainop.runtime.webhook.admission import (
        AdmissionRequest,
        AdmissionResponse,
        GroupVersionKind,
        GroupVersionResource,
        allow,
        amend,
        defaulting,
        deny,
        mutating_path,
        validating,
        validating_path,
    )
    from trainop.runtime.webhook.injection import (
        MUTATING_WEBHOOK_CONFIGURATIONS,
        VALIDATING_WEBHOOK_CONFIGURATIONS,
        Configuration,
    )
    from trainop.runtime.webhook.rotation import CertificateRotation, RotationOptions
    from trainop.runtime.webhook.server import WebhookServer

_EXPORTS = {
    "builder.context": "Context OperatorParts Watch",
    "builder.controller": "ControllerBuilder ControllerOptions",
    "builder.operator": "LeaderElection Operator",
    "webhook.admission": "AdmissionRequest AdmissionResponse GroupVersionKind GroupVersionResource allow amend"
    " defaulting deny mutating_path validating validating_path",
    "client.auth": "load_config",
    "metrics.authorize": "Authorizer ReviewClient User require_permission",
    "cache.cache": "Cache CacheError",
    "client.client": "Client Listing Page PatchKind",
    "clock": "Clock SystemClock",
    "client.cluster": "ClusterConfig ConfigError Credentials AuthHeaders",
    "client.conflicts": "update",
    "controller.controller": "Controller Source",
    "controller.create_or_patch": "OperationResult create_or_patch",
    "events.correlator": "EventLimits",
    "process": "raise_descriptor_limit return_freed_memory",
    "client.discovery": "Discovery",
    "errors": "AlreadyExistsError ApiError ConflictError DecodeError ForbiddenError GoneError InvalidError"
    " LeadershipLostError NotFoundError NotLeaderError ReconcileError TerminalError"
    " TooManyRequestsError UnauthorizedError UnhealthyError",
    "controller.expectations": "Expectations Steps",
    "controller.finalizers": "finalizing",
    "cache.mutation_detector": "MutationError",
    "client.http": "HttpStream HttpTransport",
    "client.identity": "CredentialsCheck",
    "cache.informer": "Handler Informer",
    "webhook.injection": "Configuration MUTATING_WEBHOOK_CONFIGURATIONS VALIDATING_WEBHOOK_CONFIGURATIONS",
    "manager.leader": "Announcer LeaderElector LeaseClient Timing",
    "manager.logs": "configure_logging",
    "manager.manager": "Bindable Elector Flushable Manager Runnable Stoppable Synced",
    "cache.informer_metrics": "InformerMetrics",
    "metrics.metrics": "ControllerMetrics Metrics ObservedQueue QueueMetrics WebhookMetrics",
    "objects.metadata": "Change Decoder HasMetadata Json Key Metadata ObjectReference OwnerReference PartialObject"
    " Unstructured decode_complete decode_unstructured owner_reference",
    "controller.owners": "OwnerError set_controller",
    "client.paging": "EndlessListError",
    "controller.ratelimit": "ExponentialLimiter RateLimiter RetryLimiter TokenBucket",
    "controller.reconcile": "DONE Reconciler Result",
    "events.recorder": "EventClient Recorder",
    "client.recovery": "Recovery",
    "objects.resource": "CONFIG_MAPS NAMESPACES NODES PODS SECRETS SERVICES Resource",
    "webhook.rotation": "CertificateRotation RotationOptions",
    "cache.scope": "ALL_OTHERS Scope Selector",
    "client.sender": "Limiter RequestMetrics",
    "serving.server": "Address BindError Checks HttpServer health_application metrics_application parse_address",
    "serving.certificate_folder": "CertificateFolder ServingCertificate",
    "manager.stalls": "StallWatch",
    "cache.store": "Store by_controller by_label by_namespace",
    "client.transport": "NotConnectedError Request Response Stream Transport",
    "controller.enqueue": "Changed EnqueueMapped EnqueueObject EnqueueOwner Mapper Matching Pace Predicate Urgency",
    "webhook.server": "WebhookServer",
    "controller.workqueue": "WorkQueue",
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names.split()}

# fmt: off
__all__ = [
    "ALL_OTHERS", "CONFIG_MAPS", "DONE", "MUTATING_WEBHOOK_CONFIGURATIONS", "NAMESPACES", "NODES", "PODS",
    "SECRETS", "SERVICES", "VALIDATING_WEBHOOK_CONFIGURATIONS", "Address", "AdmissionRequest",
    "AdmissionResponse", "AlreadyExistsError", "Announcer", "ApiError", "AuthHeaders", "Authorizer",
    "BindError", "Bindable", "Cache", "CacheError", "CertificateFolder", "CertificateRotation", "Change",
    "Changed", "Checks", "Client", "Clock", "ClusterConfig", "ConfigError", "Configuration", "ConflictError",
    "Context", "Controller", "ControllerBuilder", "ControllerMetrics", "ControllerOptions", "Credentials",
    "CredentialsCheck", "DecodeError", "Decoder", "Discovery", "Elector", "EndlessListError", "EnqueueMapped",
    "EnqueueObject", "EnqueueOwner", "EventClient", "EventLimits", "Expectations", "ExponentialLimiter",
    "Flushable", "ForbiddenError", "GoneError", "GroupVersionKind", "GroupVersionResource", "Handler",
    "HasMetadata", "HttpServer", "HttpStream", "HttpTransport", "Informer", "InformerMetrics", "InvalidError",
    "Json", "Key", "LeaderElection", "LeaderElector", "LeadershipLostError", "LeaseClient", "Limiter",
    "Listing", "Manager", "Mapper", "Matching", "Metadata", "Metrics", "MutationError", "NotConnectedError",
    "NotFoundError", "NotLeaderError", "ObjectReference", "ObservedQueue", "OperationResult", "Operator",
    "OperatorParts", "OwnerError", "OwnerReference", "Pace", "Page", "PartialObject", "PatchKind", "Predicate",
    "QueueMetrics", "RateLimiter", "ReconcileError", "Reconciler", "Recorder", "Recovery", "Request",
    "RequestMetrics", "Resource", "Response", "Result", "RetryLimiter", "ReviewClient", "RotationOptions",
    "Runnable", "Scope", "Selector", "ServingCertificate", "Source", "StallWatch", "Steps", "Stoppable",
    "Store", "Stream", "Synced", "SystemClock", "TerminalError", "Timing", "TokenBucket",
    "TooManyRequestsError", "Transport", "UnauthorizedError", "UnhealthyError", "Unstructured", "Urgency",
    "User", "Watch", "WebhookMetrics", "WebhookServer", "WorkQueue", "allow", "amend", "by_controller",
    "by_label", "by_namespace", "configure_logging", "create_or_patch", "decode_complete",
    "decode_unstructured", "defaulting", "deny", "finalizing", "health_application", "load_config",
    "metrics_application", "mutating_path", "owner_reference", "parse_address", "raise_descriptor_limit",
    "require_permission", "return_freed_memory", "set_controller", "update", "validating", "validating_path",
]
# fmt: on


def __getattr__(name: str) -> Any:
    """Imports the module of a public name on first use, so that unused parts cost no memory."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
