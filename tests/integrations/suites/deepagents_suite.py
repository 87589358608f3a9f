"""LangChain's tests of a deepagents sandbox, on one backend."""

import os
from collections.abc import Iterator

import pytest
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_tests.integration_tests import SandboxIntegrationTests

from kakoi.integrations.deepagents import SandboxBackend
from kakoi.sync import Sandbox


@pytest.mark.asyncio
class TestSandboxBackend(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[SandboxBackendProtocol]:
        backend, image = os.environ["KAKOI_SUITE_BACKEND"], os.environ.get("KAKOI_SUITE_IMAGE")
        with Sandbox(backend, image=image, policy="open") as box:
            yield SandboxBackend(box)
