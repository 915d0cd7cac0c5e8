"""Classifies errors of create requests by their consequence for the job.

A refusal of the manifest itself would recur, so it fails a job that has never had pods. Exhausted quota, outages and
configuration errors of the cluster are retried.
"""

from __future__ import annotations

import enum
from http import HTTPStatus

from trainop.runtime import ApiError


class CreateFailure(enum.Enum):
    """Why the API server did not create an object."""

    REFUSED = "refused"
    """The manifest itself is refused, and would be refused again."""
    QUOTA = "quota"
    """The quota of the namespace is exhausted; retried with back-off until other objects release it."""
    NOT_PERMITTED = "not permitted"
    """The operator's role lacks the permission; retried with the same back-off until it is granted."""
    NAMESPACE_TERMINATING = "namespace terminating"
    """The namespace is being deleted, and the job with it: not an error of the job."""
    RETRIABLE = "retriable"
    """A transient failure, retried with back-off."""


_RETRIABLE_CODES = frozenset({401, 404, 408, 409, 429})

_NOT_PERMITTED = "cannot create resource"
"""Part of the message with status 403 of a permission that the operator lacks: not an error of the job."""

_MISSING_RIGHTS = (
    _NOT_PERMITTED,
    "cannot get resource",  # the operator lacks a permission for a companion, which may be granted later
    "cannot patch resource",
    "attempting to grant RBAC permissions not currently held",
)

_RETRIABLE_FORBIDDEN = (
    *_MISSING_RIGHTS,
    "error looking up service account",  # created shortly after its namespace
    "no API token found for service account",  # likewise
    "status unknown for quota",  # the quota controller has not processed the namespace yet
)
"""Parts of messages with status 403 that concern the cluster's state and not the manifest (kubernetes
`plugin/pkg/admission/serviceaccount`, `staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota`)."""


def classify(error: Exception) -> CreateFailure:
    """Classifies an exception raised by a create or apply request."""
    if not isinstance(error, ApiError):
        return CreateFailure.RETRIABLE
    if error.namespace_terminating:
        return CreateFailure.NAMESPACE_TERMINATING
    if error.code == 403 and "exceeded quota" in error.message:
        return CreateFailure.QUOTA
    if error.code == 403 and _NOT_PERMITTED in error.message:
        return CreateFailure.NOT_PERMITTED
    return CreateFailure.RETRIABLE if _is_retriable(error) else CreateFailure.REFUSED


def lacks_rights(error: Exception) -> bool:
    """Whether the operator's role lacks the permission for the request."""
    if not isinstance(error, ApiError) or error.code != HTTPStatus.FORBIDDEN:
        return False
    return any(part in error.message for part in _MISSING_RIGHTS)


def _is_retriable(error: ApiError) -> bool:
    if not 400 <= error.code < 500:
        return not error.too_large
    if error.code == 403:
        return any(part in error.message for part in _RETRIABLE_FORBIDDEN)
    return error.code in _RETRIABLE_CODES
