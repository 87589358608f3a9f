"""inspect_ai's checks of a sandbox, on one backend."""

import os
from collections.abc import AsyncIterator

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from kakoi.integrations.inspect_ai import KakoiConfig, KakoiSandboxEnvironment

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def sandbox_env() -> AsyncIterator[SandboxEnvironment]:
    backend, image = os.environ["KAKOI_SUITE_BACKEND"], os.environ.get("KAKOI_SUITE_IMAGE")
    config = KakoiConfig(backend=backend, image=image)
    environments = await KakoiSandboxEnvironment.sample_init("self_check", config, {})
    yield environments["default"]
    await KakoiSandboxEnvironment.sample_cleanup("self_check", config, environments, False)
