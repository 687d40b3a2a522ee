"""Settings of all tests: a busy machine must not fail a property, and unit tests share two cores."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

settings.register_profile("fleet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fleet")


def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported stays as long as the process: no collector needs to walk through its million objects."""
    gc.freeze()
    gc.enable()
