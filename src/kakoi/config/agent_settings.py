"""What can be set about the agent: its model, how far it may go, and other tools than ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kakoi.config.kinds import AMOUNT, COUNT, FROM_ZERO, NUMBER, PATH, SERVERS, TEXT
from kakoi.config.setting import described


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSection:
    """The agent that works on tasks."""

    model: str = described(
        "", TEXT, "The model, as PROVIDER:NAME (openai:…, anthropic:…).", env="KAKOI_MODEL"
    )
    base_url: str = described(
        "",
        TEXT,
        "Where its server is; empty is the provider's own address.",
        env="KAKOI_MODEL_URL",
    )
    api_key_env: str = described(
        "",
        TEXT,
        "The variable that holds the key; empty is OPENAI_API_KEY or ANTHROPIC_API_KEY, with "
        "`base_url` KAKOI_MODEL_API_KEY.",
    )
    max_steps: int = described(
        100,
        COUNT,
        "How often the model is asked.",
        env="KAKOI_MAX_STEPS",
        project="lower",
    )
    max_seconds: float = described(
        3600.0, NUMBER, "How long a task may take.", env="KAKOI_MAX_SECONDS", project="lower"
    )
    max_cost: float = described(
        0.0, AMOUNT, "US dollars that a task may cost; 0 is no limit.", env="KAKOI_MAX_COST"
    )
    input_price: float = described(
        0.0, AMOUNT, "US dollars for a million tokens read; 0 is the price that is known."
    )
    output_price: float = described(0.0, AMOUNT, "US dollars for a million tokens written.")
    context_window: int = described(
        128_000, COUNT, "How many tokens the model can read at once.", env="KAKOI_CONTEXT_WINDOW"
    )
    max_output_tokens: int = described(16_384, COUNT, "How many tokens an answer may have.")
    request_timeout: float = described(600.0, NUMBER, "Seconds for one answer of the model.")
    reflect_every: int = described(
        0, FROM_ZERO, "After so many steps the model is asked to look back; 0 is never."
    )
    transcripts: str = described(
        "",
        PATH,
        "The folder of transcripts; empty is kakoi/transcripts in $XDG_STATE_HOME or "
        "~/.local/state.",
        env="KAKOI_TRANSCRIPTS",
    )
    mcp_servers: tuple[Mapping[str, Any], ...] = described(
        (),
        SERVERS,
        "MCP servers beside ours: name, and command (with env) or url (with token_env).",
    )
