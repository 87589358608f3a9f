"""Settings → an agent: its model, its limits, other tools than ours, and where it is written down.

Imports what talks to models: only who runs an agent imports this.
"""

import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from kakoi.agent.loop import Limits
from kakoi.agent.models import ModelOptions, Prices
from kakoi.agent.servers import PASSED_ON, ServerSpec
from kakoi.config.agent_settings import AgentSection
from kakoi.config.credentials import model_key
from kakoi.config.recording import default_audit_file
from kakoi.errors import ConfigurationError
from kakoi.sections import Section, wrong

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_WHERE: Final = "agent.mcp_servers"


def model_options(settings: AgentSection) -> ModelOptions:
    """The model that the settings name, with the key that belongs to its address."""
    if not settings.model:
        raise ConfigurationError(
            "no model is named",
            hint="KAKOI_MODEL=anthropic:NAME, openai:NAME, or agent.model in your settings",
        )
    priced = settings.input_price or settings.output_price
    prices = Prices(input=settings.input_price, output=settings.output_price) if priced else None
    provider = settings.model.partition(":")[0]
    return ModelOptions(
        model=settings.model,
        base_url=settings.base_url,
        key=model_key(provider, base_url=settings.base_url, variable=settings.api_key_env),
        prices=prices,
        timeout_s=settings.request_timeout,
        max_output_tokens=settings.max_output_tokens,
    )


def limits_from(settings: AgentSection) -> Limits:
    """How far it may go."""
    return Limits(
        steps=settings.max_steps,
        seconds=settings.max_seconds,
        cost=settings.max_cost or None,
        window_tokens=settings.context_window,
        reflect_every=settings.reflect_every,
    )


def servers_from(settings: AgentSection) -> list[ServerSpec]:
    """The MCP servers beside ours. They run outside of the sandbox, with what is named here."""
    specs = [_server(each, number) for number, each in enumerate(settings.mcp_servers, 1)]
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"{_WHERE}: `{name}` is there twice", hint="rename one")
    return specs


def _server(given: Mapping[str, Any], number: int) -> ServerSpec:
    section = Section(given, f"{_WHERE}[{number}]", "name command url env token_env timeout")
    name = section.text("name")
    if not _NAME.fullmatch(name) or "__" in name:
        raise wrong(section.at("name"), name, "1 to 32 letters, digits, `-` or single `_`")
    env = {each: os.environ[each] for each in PASSED_ON if each in os.environ}
    for variable in section.texts("env") or ():
        env[variable] = _variable(variable, section.at("env"))
    token = section.text("token_env")
    headers = {"Authorization": f"Bearer {_variable(token, section.at('token_env'))}"}
    return ServerSpec(
        name=name,
        command=section.texts("command") or (),
        url=section.text("url"),
        env=env,
        headers=headers if token else {},
        timeout_s=section.seconds("timeout", 120.0),
    )


def _variable(name: str, where: str) -> str:
    if name and not os.environ.get(name):
        raise ConfigurationError(
            f"{where} names {name[:64]!r}, which is not set", hint="set it, or leave it out"
        )
    return os.environ.get(name, "")


def transcripts_folder(settings: AgentSection) -> Path:
    """Where transcripts go."""
    named = settings.transcripts
    return Path(named) if named else default_audit_file(os.environ).parent / "transcripts"


def transcript_file(settings: AgentSection, name: str, now: datetime) -> Path:
    """Where the transcript of a task goes that begins now."""
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:64] or "task"
    return transcripts_folder(settings) / f"{now:%Y%m%dT%H%M%S.%f}-{safe}.jsonl"
