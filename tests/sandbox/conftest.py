"""Fixtures for the tests of `Sandbox`."""

from tests.tasks.conftest import engine as engine  # Skips if there is no engine.
