"""Errors that a person can put right: told in one line, never with a traceback.

    TrainopError                 `exit_code` is what the command ends with
    ├── UsageError               2: a flag or an argument that makes no sense
    └── StartError               1: the operator cannot start as it was told to
        └── UnknownSchemeError   1: --enable-scheme names a kind that does not exist or is not built yet

What the API server answers is `trainop.runtime.errors.ApiError`; what is wrong with credentials or a kubeconfig is
`trainop.runtime.client.auth.ConfigError`. Commands print those in one line, too.
"""

from __future__ import annotations


class TrainopError(Exception):
    """The message is one clear line."""

    exit_code = 1


class UsageError(TrainopError):
    exit_code = 2


class StartError(TrainopError): ...


class UnknownSchemeError(StartError): ...
