"""create_executor: a configuration and the plug-ins that are installed → a CommandExecutor."""

import os
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from kakoi.bash_executor import checks
from kakoi.bash_executor.config_loader import (
    ConfigLoader,
    parse_format,
    parse_level,
    parse_sandbox,
)
from kakoi.bash_executor.executor import CommandExecutor
from kakoi.bash_executor.logs import CommandLog
from kakoi.bash_executor.validator import CommandValidator, Validator
from kakoi.errors import ConfigurationError
from kakoi.sections import shown

VALIDATORS: Final = "kakoi.bash_executor.validators"


def create_executor(
    config_path: str | os.PathLike[str] | None = None,
    *,
    root_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> CommandExecutor:
    """An executor as the file at `config_path` has it; without one, as the file that we ship.

    What is given here goes before what the file says; what the file leaves out is as we ship it.
    """
    config, shipped = ConfigLoader(config_path), ConfigLoader()

    def setting(key: str) -> Any:
        return config.get(key, shipped.get(key))

    is_listed_only = setting("security.enable_whitelist")
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
        sandbox=parse_sandbox("executor.sandbox", setting("executor.sandbox")),
        pure_commands=setting("executor.pure_commands"),
        log=CommandLog(
            parse_level("logging.level", setting("logging.level")),
            None if format_text is None else parse_format("logging.format", format_text),
        ),
    )


def load_validator(entry: EntryPoint) -> Validator:
    """A plug-in; ConfigurationError names the one that cannot be had."""
    named = f"the validator `{entry.name}` ({entry.value})"
    hint = "mend or uninstall the package that it came with"
    try:
        found = entry.load()
    except Exception as error:  # Whatever the code of others does when it is imported.
        why = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"{named} cannot be loaded: {why}", hint=hint) from error
    if not callable(found):
        raise ConfigurationError(f"{named} is {shown(found)}, not callable", hint=hint)
    validator: Validator = found
    return validator


def _installed() -> list[EntryPoint]:
    return sorted(entry_points(group=VALIDATORS), key=lambda entry: (entry.name, entry.value))


def _root(config: ConfigLoader, given: str | os.PathLike[str] | None) -> str:
    if given is not None:
        return checks.path("root_dir", given)
    named = config.get("executor.root_dir")
    return "." if named is None else str(config.resolve(named))
