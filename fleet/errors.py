"""The one tree of errors: each says its HTTP status and its type in OpenAI's shape."""

from __future__ import annotations


class FleetError(Exception):
    """Base of everything this project raises on purpose."""

    http_status = 500
    openai_type = "server_error"


class BadRequest(FleetError):
    """The caller's request is wrong; `param` names the field."""

    http_status = 400
    openai_type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Unauthorized(BadRequest):
    """No key, or a key that is not accepted."""

    http_status = 401
    openai_type = "authentication_error"


class Forbidden(BadRequest):
    """The caller is known but may not do this."""

    http_status = 403
    openai_type = "permission_error"


class NotFound(BadRequest):
    """The named model, path or rollout does not exist."""

    http_status = 404
    openai_type = "not_found_error"


class Conflict(BadRequest):
    """The command does not fit the present state, such as a second rollout."""

    http_status = 409
    openai_type = "conflict_error"


class Overloaded(FleetError):
    """The bounded queue is full; come back after `retry_after_seconds`."""

    http_status = 429
    openai_type = "rate_limit_error"

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(FleetError):
    """No replica of the path is ready."""

    http_status = 503
    openai_type = "service_unavailable_error"


class DeadlineExceeded(FleetError):
    """The work did not finish in the time it was given."""

    http_status = 504
    openai_type = "timeout_error"


class ReplicaLost(FleetError):
    """The replica died, hung or was cut off in mid-stream; `replica` names it where its death is what happened."""

    http_status = 502

    def __init__(self, message: str, *, replica: str | None = None) -> None:
        super().__init__(message)
        self.replica = replica


class OutOfMemory(FleetError):
    """A memory allocation failed in the model worker."""

    http_status = 503


class DraftUnavailable(FleetError):
    """The draft worker is not there; the target decodes alone."""

    http_status = 503


class ProtocolViolation(FleetError):
    """The other end of a stream sent what it must not send; the stream ends, the worker goes on."""

    http_status = 502


class ConfigError(FleetError):
    """A config file, plan or model is unusable; the message says what to change. Exit code 2."""

    http_status = 400
    openai_type = "invalid_request_error"


class InvalidTransition(FleetError):
    """An event that the state machine does not know in this state; nothing has changed."""

    http_status = 409
    openai_type = "conflict_error"
