"""Loads what watches over the whole suite: tests/ and src/kakoi/conformance alike."""

pytest_plugins = ("tests.suite.tiers", "tests.suite.hangs", "tests.suite.profile")
