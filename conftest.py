"""Loads the plugins for the whole suite, both tests/ and src/kakoi/conformance."""

pytest_plugins = (
    "tests.suite.tiers",
    "tests.suite.hangs",
    "tests.suite.cancellation",
    "tests.suite.profile",
    "tests.suite.foreign",
)
