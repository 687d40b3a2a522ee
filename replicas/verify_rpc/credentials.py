"""Certificates of the verify stream, read once at the edge."""

from __future__ import annotations

from pathlib import Path

import grpc

from fleet.config import TlsConfig
from fleet.errors import ConfigError

CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", 64 << 20),
)
"""Both ends notice a frozen or unreachable peer within 15 s; an opening carries a whole prompt."""


def server_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """Mutual TLS: the draft must show a certificate of the same authority."""
    pair = (_read(tls.key), _read(tls.certificate))
    return grpc.ssl_server_credentials([pair], root_certificates=_read(tls.ca), require_client_auth=True)


def channel_credentials(tls: TlsConfig) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.certificate))


def _read(path: Path) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
