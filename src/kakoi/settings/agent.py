"""The agent's settings: its model, its limits and additional tool servers."""

from collections.abc import Mapping
from typing import Any

from kakoi._support.fields import AMOUNT, COUNT, FROM_ZERO, PATH, SECONDS, SERVERS, TEXT, described
from kakoi._support.late import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSection:
    """The agent that works on tasks."""

    model: str = described(
        "", TEXT, "The model, as PROVIDER:NAME (openai:…, anthropic:…).", env="KAKOI_MODEL"
    )
    base_url: str = described(
        "",
        TEXT,
        "The model server's URL; empty means the provider's own.",
        env="KAKOI_MODEL_URL",
    )
    api_key_env: str = described(
        "",
        TEXT,
        "The environment variable that holds the API key; empty means OPENAI_API_KEY or "
        "ANTHROPIC_API_KEY, or with `base_url` KAKOI_MODEL_API_KEY.",
    )
    max_steps: int = described(
        100,
        COUNT,
        "The maximum number of requests to the model for a task.",
        env="KAKOI_MAX_STEPS",
        project="lower",
    )
    max_seconds: float = described(
        3600.0,
        SECONDS,
        "The maximum duration of a task in seconds.",
        env="KAKOI_MAX_SECONDS",
        project="lower",
    )
    max_cost: float = described(
        0.0,
        AMOUNT,
        "The maximum cost of a task in US dollars; 0 means no limit.",
        env="KAKOI_MAX_COST",
    )
    input_price: float = described(
        0.0, AMOUNT, "US dollars per million input tokens; 0 uses the known price of the model."
    )
    output_price: float = described(0.0, AMOUNT, "US dollars per million output tokens.")
    context_window: int = described(
        128_000,
        COUNT,
        "The size of the model's context window in tokens.",
        env="KAKOI_CONTEXT_WINDOW",
    )
    max_output_tokens: int = described(
        16_384, COUNT, "The maximum number of tokens in one answer of the model."
    )
    request_timeout: float = described(
        600.0, SECONDS, "Timeout in seconds for one answer of the model."
    )
    reflect_every: int = described(
        0,
        FROM_ZERO,
        "Ask the model to review its progress after this many steps; 0 means never.",
    )
    transcripts: str = described(
        "",
        PATH,
        "The folder for transcripts; empty means kakoi/transcripts in $XDG_STATE_HOME or "
        "~/.local/state.",
        env="KAKOI_TRANSCRIPTS",
    )
    mcp_servers: tuple[Mapping[str, Any], ...] = described(
        (),
        SERVERS,
        "Additional MCP servers: name, and command (with env) or url (with token_env).",
    )
