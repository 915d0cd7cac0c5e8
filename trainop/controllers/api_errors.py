"""Why the API server did not create what a plan asked for, and so what becomes of the job."""

from __future__ import annotations

import enum
from http import HTTPStatus

from trainop.runtime.errors import ApiError


class CreateFailure(enum.Enum):
    REFUSED = "refused"
    """The manifest itself is refused, and will be the next time."""
    QUOTA = "quota"
    """The namespace's quota is used up; others may free it."""
    NAMESPACE_TERMINATING = "namespace terminating"
    """The namespace is being deleted, and the job with it."""
    RETRIABLE = "retriable"
    """Something that may pass: worth a retry with back-off."""


_PASSING = frozenset({401, 404, 408, 409, 429})

_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
"""What etcd and its client say of objects of more than 1.5 and 2 MiB; the API server passes it on with status 500."""

_PASSING_FORBIDDEN = (
    "cannot create resource",  # the operator's own rights: an administrator's mistake, not the job's
    "error looking up service account",  # made a moment after its namespace
    "no API token found for service account",  # the same
    "status unknown for quota",  # the quota controller has not seen the namespace yet
)
"""Parts of messages with status 403 that speak of circumstances, not of the manifest (kubernetes
`plugin/pkg/admission/serviceaccount`, `staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota`)."""


def classify(error: Exception) -> CreateFailure:
    """What an error of a POST means."""
    if not isinstance(error, ApiError):
        return CreateFailure.RETRIABLE
    if error.namespace_terminating:
        return CreateFailure.NAMESPACE_TERMINATING
    if error.code == 403 and "exceeded quota" in error.message:
        return CreateFailure.QUOTA
    return CreateFailure.RETRIABLE if _may_pass(error) else CreateFailure.REFUSED


def is_too_large(error: ApiError) -> bool:
    """Whether the object would be larger than the API server, or etcd, takes."""
    return error.code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or any(part in error.message for part in _TOO_LARGE)


def _may_pass(error: ApiError) -> bool:
    if not 400 <= error.code < 500:
        return not is_too_large(error)
    if error.code == 403:
        return any(part in error.message for part in _PASSING_FORBIDDEN)
    return error.code in _PASSING
