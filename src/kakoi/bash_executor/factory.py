"""create_executor: a CommandExecutor from a configuration file and the installed plug-ins."""

import logging
import os
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from kakoi._support.text import short_repr, shown
from kakoi.bash_executor import checks
from kakoi.bash_executor.command_log import CommandLog
from kakoi.bash_executor.config_loader import (
    ConfigLoader,
    find_config,
    parse_format,
    parse_level,
    parse_sandbox,
)
from kakoi.bash_executor.executor import CommandExecutor
from kakoi.bash_executor.validator import CommandValidator, Validator
from kakoi.errors import ConfigurationError

_log = logging.getLogger(__name__)
VALIDATORS: Final = "kakoi.bash_executor.validators"


def create_executor(
    config_path: str | os.PathLike[str] | None = None,
    *,
    root_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> CommandExecutor:
    """Create an executor from the file at `config_path`.

    Without one, from config/bash_executor/config.yaml in the current directory, or else
    bash_executor/config.yaml in the user's config folder, or else the shipped file; `config_file`
    of the executor and the log say which. Name a file if others can write to the current directory:
    that file decides which commands run.

    Arguments take precedence over the file. For keys that the file leaves out, the shipped file
    applies.
    """
    config = ConfigLoader(find_config() if config_path is None else config_path)
    shipped = ConfigLoader()

    def setting(key: str) -> Any:
        return config.get(key, shipped.get(key))

    is_listed_only = setting("security.enable_whitelist")
    sandbox = parse_sandbox("executor.sandbox", setting("executor.sandbox"))
    weakens = not is_listed_only or "host" in (sandbox.type, sandbox.fallback)
    _log_choice(config.path, is_warning=weakens and config_path is None)
    root = os.path.realpath(_root(config, root_dir))
    validator = CommandValidator(
        config.load_whitelist() if is_listed_only else (),
        setting("security.block_patterns"),
        is_listed_only,
        [load_validator(entry) for entry in _installed()],
        root_dir=root,
    )
    format_text = setting("logging.format")
    return CommandExecutor(
        validator,
        root,
        timeout=setting("executor.timeout") if timeout is None else timeout,
        sandbox=sandbox,
        pure_commands=setting("executor.pure_commands"),
        log=CommandLog(
            parse_level("logging.level", setting("logging.level")),
            None if format_text is None else parse_format("logging.format", format_text),
        ),
        config_file=config.path,
    )


def _log_choice(path: Path, *, is_warning: bool) -> None:
    _log.info("the configuration is %s", shown(str(path)))
    if is_warning:
        _log.warning(
            "%s, which was found and not named, turns off the whitelist or the sandbox",
            shown(str(path)),
        )


def load_validator(entry: EntryPoint) -> Validator:
    """Load a plug-in; raise a ConfigurationError that names it if that fails."""
    named = f"the validator `{entry.name}` ({entry.value})"
    hint = "fix or uninstall the package that provides it"
    try:
        found = entry.load()
    except Exception as error:  # Importing other people's code can raise anything.
        why = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"{named} cannot be loaded: {why}", hint=hint) from error
    if not callable(found):
        raise ConfigurationError(
            f"{named} is {short_repr(found)}, which is not callable", hint=hint
        )
    validator: Validator = found
    return validator


def _installed() -> list[EntryPoint]:
    return sorted(entry_points(group=VALIDATORS), key=lambda entry: (entry.name, entry.value))


def _root(config: ConfigLoader, root_dir: str | os.PathLike[str] | None) -> str:
    if root_dir is not None:
        return checks.path("root_dir", root_dir)
    named = config.get("executor.root_dir")
    return "." if named is None else str(config.resolve(named))
