"""Who is calling, and may they? API keys for tenants, one token for the admin API."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from fleet.config import RouterConfig, resolve_secret
from fleet.errors import Forbidden, Unauthorized


class Access:
    """Checks bearer tokens in constant time. Without API keys the API is open; without an admin token admin is shut."""

    def __init__(self, config: RouterConfig) -> None:
        """ConfigError when a secret that the config refers to is missing."""
        self._keys = {tenant: resolve_secret(value).encode() for tenant, value in config.api_keys.items()}
        self._admin = None if config.admin_token is None else resolve_secret(config.admin_token).encode()

    def tenant(self, headers: Mapping[str, str]) -> str | None:
        """The name behind the request's API key, None where no keys are configured; else Unauthorized."""
        if not self._keys:
            return None
        given = _bearer(headers)
        matching = [tenant for tenant, key in self._keys.items() if hmac.compare_digest(key, given)]
        if not matching:
            what = "is not accepted" if given else "is missing: send 'Authorization: Bearer KEY'"
            raise Unauthorized(f"the API key {what}", code="invalid_api_key")
        return matching[0]

    def check_admin(self, headers: Mapping[str, str]) -> None:
        """Forbidden where there is no admin API, Unauthorized with the wrong token."""
        if self._admin is None:
            raise Forbidden("the admin API is off: set router.admin_token", code="admin_disabled")
        if not hmac.compare_digest(self._admin, _bearer(headers)):
            raise Unauthorized("the admin token is missing or wrong: send 'Authorization: Bearer TOKEN'")


def _bearer(headers: Mapping[str, str]) -> bytes:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip().encode() if scheme.lower() == "bearer" else b""
