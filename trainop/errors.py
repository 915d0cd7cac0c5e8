"""Errors that the user can correct. Commands print them in one line, without a traceback.

    TrainopError                 has the exit code of the command
    ├── UsageError               2: invalid flag or argument
    └── StartError               1: the operator cannot start with these settings
        └── UnknownSchemeError   1: --enable-scheme names a kind that does not exist or is not supported yet

Error responses of the API server are `trainop.runtime.errors.ApiError`; invalid credentials or kubeconfigs raise
`trainop.runtime.client.auth.ConfigError`. Commands print these in one line, too.
"""

from __future__ import annotations


class TrainopError(Exception):
    """Base class. The message is one line."""

    exit_code = 1


class UsageError(TrainopError):
    exit_code = 2


class StartError(TrainopError): ...


class UnknownSchemeError(StartError): ...
