"""Settings → an agent: its model, limits, other MCP servers, and transcript.

Imports the model libraries, so only code that runs an agent imports this module.
"""

import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from kakoi._support.late import pattern
from kakoi._support.parsing import Section, wrong
from kakoi.agents.loop import LoopLimits
from kakoi.agents.models import ModelOptions, Prices
from kakoi.agents.servers import PASSED_ON, ServerSpec
from kakoi.errors import ConfigurationError
from kakoi.settings.agent import AgentSection
from kakoi.settings.audit_log import default_audit_file

_NAME: Final = pattern(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_WHERE: Final = "agent.mcp_servers"
# The key variable of each provider, and the one for servers at other addresses.
_MODEL_KEYS: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_OTHER_MODEL_KEY: Final = "KAKOI_MODEL_API_KEY"


def model_options(settings: AgentSection) -> ModelOptions:
    """Return the model from the settings, with the key that belongs to its address."""
    if not settings.model:
        raise ConfigurationError(
            "no model is named",
            hint="set KAKOI_MODEL=anthropic:NAME or openai:NAME, or agent.model in your settings",
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


def limits_from(settings: AgentSection) -> LoopLimits:
    """Return the limits of the loop."""
    return LoopLimits(
        steps=settings.max_steps,
        seconds=settings.max_seconds,
        cost=settings.max_cost or None,
        window_tokens=settings.context_window,
        reflect_every=settings.reflect_every,
    )


def servers_from(settings: AgentSection) -> list[ServerSpec]:
    """Return the other MCP servers. They run outside the sandbox, with only what is named here."""
    specs = [_server(each, number) for number, each in enumerate(settings.mcp_servers, 1)]
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"{_WHERE}: duplicate name `{name}`", hint="rename one")
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
            f"{where} names {name[:64]!r}, which is not set", hint="set it, or remove it"
        )
    return os.environ.get(name, "")


def transcripts_folder(settings: AgentSection) -> Path:
    """Return the directory for transcripts."""
    named = settings.transcripts
    return Path(named) if named else default_audit_file(os.environ).parent / "transcripts"


def transcript_file(settings: AgentSection, name: str, now: datetime) -> Path:
    """Return the transcript file for a task that starts now."""
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:64] or "task"
    return transcripts_folder(settings) / f"{now:%Y%m%dT%H%M%S.%f}-{safe}.jsonl"


def model_key(
    provider: str,
    *,
    base_url: str = "",
    variable: str = "",
    environ: Mapping[str, str] | None = None,
) -> str:
    """Return the key for a model; empty if there is none. An unset `variable` is an error.

    A provider's key is sent to another address only if `variable` names it.
    """
    given = os.environ if environ is None else environ
    if variable:
        if not given.get(variable):
            raise ConfigurationError(
                f"agent.api_key_env names {variable[:64]!r}, which is not set",
                hint="set it to the key, or name another variable",
            )
        return given[variable].strip()
    own = _OTHER_MODEL_KEY if base_url else _MODEL_KEYS.get(provider, _OTHER_MODEL_KEY)
    return given.get(own, "").strip()
