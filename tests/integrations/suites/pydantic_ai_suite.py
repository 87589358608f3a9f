"""pydantic-ai's suite for workspaces, on one backend. See tests/integrations/foreign.py."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from kakoi import Sandbox
from kakoi.integrations.pydantic_ai import SandboxWorkspaces


class TestSandboxWorkspace(WorkspaceBackendSuite):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    async def sandboxes(self) -> AsyncIterator[SandboxWorkspaces]:
        backend, image = os.environ["KAKOI_SUITE_BACKEND"], os.environ.get("KAKOI_SUITE_IMAGE")
        new = partial(Sandbox, backend, image=image, policy="open")
        async with SandboxWorkspaces(new) as sandboxes:
            yield sandboxes

    @pytest.fixture
    def backend(self, sandboxes: SandboxWorkspaces) -> WorkspaceBackend:
        return sandboxes.backend()

    @pytest.fixture
    def fresh_backend(self, sandboxes: SandboxWorkspaces) -> Callable[[], WorkspaceBackend]:
        return sandboxes.backend

    @pytest.fixture
    def attach_backend(
        self, sandboxes: SandboxWorkspaces
    ) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return sandboxes.backend

    @pytest.fixture
    def destroy_environment(
        self, sandboxes: SandboxWorkspaces
    ) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert backend.ref is not None
            await sandboxes.delete(backend.ref)

        return destroy
