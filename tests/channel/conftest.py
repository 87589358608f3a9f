"""Fixtures shared with the tests of the runner."""

from tests.runner.conftest import channel, nothing_leaks, witness

__all__ = ("channel", "nothing_leaks", "witness")
