"""Settings of all tests: a busy machine must not fail a property, and unit tests share two cores."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("fleet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fleet")
