"""@agent: a coroutine function that does its work itself, or lets a model do it.

A function without a body is done by the model, with the built-in functions as its tools.
"""

import dis
import functools
import inspect
import json
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, get_origin, overload

from kakoi._support.extras import load_extra
from kakoi._support.late import pattern
from kakoi._support.text import short_repr
from kakoi.builtin.registry import GROUPS
from kakoi.errors import ConfigurationError, ModelError
from kakoi.settings.loader import load_settings

if TYPE_CHECKING:
    from kakoi.agents.events import LoopEnded

_P = ParamSpec("_P")
_R = TypeVar("_R")
_PLACEHOLDER: Final = pattern(r"\{\{\s*(\w+)\s*\}\}")
# Filters, expressions and blocks of template engines.
_OTHER_TEMPLATE: Final = pattern(r"\{\{[^}]{0,80}\}?\}?|\{%[^%]{0,80}(%\})?")
# What a model can return besides text, and how that is called in JSON.
_JSON_TYPES: Final[Mapping[object, str]] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    list: "an array",
    dict: "an object",
}


@overload
def agent(
    function: Callable[_P, Coroutine[Any, Any, _R]], /
) -> Callable[_P, Coroutine[object, object, _R]]: ...


@overload
def agent(
    *, model: str = "", builtin: bool = False
) -> Callable[
    [Callable[_P, Coroutine[Any, Any, _R]]], Callable[_P, Coroutine[object, object, _R]]
]: ...


def agent(
    function: Callable[..., Coroutine[Any, Any, object]] | None = None,
    /,
    *,
    model: str = "",
    builtin: bool = False,
) -> Callable[..., object]:
    """Make an agent of a coroutine function. Its docstring describes the task.

        @agent(model="gpt-4o-mini")
        async def summarize(topic: str) -> str:
            \"\"\"Summarize what the documents here say about {{ topic }}.\"\"\"
            ...

    A function with a body runs that body, which can call `kakoi.builtin` and other agents. If the
    body is `...`, the model does the task with the functions of `kakoi.builtin` as tools, judged
    and confined as for everybody. `{{ name }}` in the docstring stands for that argument. The
    result is the model's summary; a function that returns bool, int, float, list or dict gets the
    value. ModelError: the model failed, gave up or reached a limit. Type checkers want a body (for
    mypy: `# type: ignore[empty-body]`).

    - `model`: `openai:NAME` or `anthropic:NAME`; a NAME alone is one of OpenAI, or of Anthropic if
        it begins with "claude". Empty: `agent.model` of the settings, which also have the limits,
        the address and the key's variable.
    - `builtin`: it never asks a model, so it must have a body.
    """

    def decorate(decorated: Callable[..., Coroutine[Any, Any, object]]) -> Callable[..., object]:
        return _decorated(decorated, model=model, builtin=builtin)

    return decorate if function is None else decorate(function)


def _decorated(
    function: Callable[..., Coroutine[Any, Any, object]], *, model: str, builtin: bool
) -> Callable[..., object]:
    if not inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"@agent decorates coroutine functions, not {short_repr(function)}",
            hint="write `async def`",
        )
    name = function.__name__
    template = inspect.getdoc(function) or ""
    signature = inspect.signature(function)
    for placeholder in _PLACEHOLDER.findall(template):
        if placeholder not in signature.parameters:
            raise ConfigurationError(
                f"the docstring of {name} has {{{{ {placeholder} }}}}, which is not a parameter",
                hint=f"the parameters are: {', '.join(signature.parameters) or 'none'}",
            )
    if not _is_empty(function):
        return function
    if builtin or not template:
        what = "a built-in without a body" if builtin else "without a body and without a docstring"
        raise ConfigurationError(
            f"{name} is {what}", hint="write a body, or describe the task in a docstring"
        )
    if (other := _OTHER_TEMPLATE.search(_PLACEHOLDER.sub("", template))) is not None:
        raise ConfigurationError(
            f"the docstring of {name} has {short_repr(other[0])}, which is not filled in",
            hint="only {{ name }} is, with a parameter's name; pass other text as an argument",
        )
    result = inspect.signature(function, eval_str=True).return_annotation
    read = _reader(name, result)

    @functools.wraps(function)
    async def ask(*args: object, **kwargs: object) -> object:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        task = _PLACEHOLDER.sub(lambda found: str(bound.arguments[found[1]]), template)
        return read(await _ask(model, task, form=_form(result)))

    return ask


async def _nothing() -> None: ...


def _is_empty(function: Callable[..., object]) -> bool:
    """Whether the body is `...` or only a docstring: both compile to nothing but a return."""

    def steps(code: Callable[..., object]) -> list[tuple[str, object]]:
        found = [(each.opname, each.argval) for each in dis.get_instructions(code)]
        return [each for each in found if each[0] != "NOP"]

    return steps(function) == steps(_nothing)


# --- The model -------------------------------------------------------------------------------


async def _ask(model: str, task: str, *, form: str) -> "LoopEnded":
    """Let the model do a task in the current directory."""
    for module in ("models", "from_settings", "tools"):
        load_extra(f"kakoi.agents.{module}", extra="agent", feature="@agent without a body")
    from kakoi.agents.from_settings import limits_from, model_options
    from kakoi.agents.instructions import task_prompt
    from kakoi.agents.loop import AgentLoop
    from kakoi.agents.models import open_model
    from kakoi.builtin.function_tools import FunctionTools, instructions_for

    directory = os.getcwd()
    settings = load_settings(directory).settings.agent
    if model:
        settings = replace(settings, model=_qualified(model))
    functions = {name: each for group in GROUPS.values() for name, each in group.items()}
    async with open_model(model_options(settings)) as opened:
        tools = FunctionTools(functions, directory=directory)
        loop = AgentLoop(opened, tools, limits=limits_from(settings))
        return await loop.run(instructions_for(directory, form=form), task_prompt("", task))


def _qualified(model: str) -> str:
    if ":" in model:
        return model
    return f"{'anthropic' if model.startswith('claude') else 'openai'}:{model}"


# --- The result ------------------------------------------------------------------------------


def _form(annotation: object) -> str:
    """Return what the instructions say about the form of the result."""
    kind = _JSON_TYPES.get(get_origin(annotation) or annotation)
    return f": {kind}, as JSON and without any other text" if kind else ""


def _reader(name: str, annotation: object) -> "Callable[[LoopEnded], object]":
    """Return how to read the result of a function with this annotation."""
    kind = get_origin(annotation) or annotation
    if kind not in (str, None, inspect.Signature.empty, *_JSON_TYPES):
        raise ConfigurationError(
            f"{name} returns {short_repr(annotation)}, which a model cannot give",
            hint="return str, None, bool, int, float, list or dict, or write a body",
        )

    def read(ended: "LoopEnded") -> object:
        if not ended.is_success:
            raise ModelError(
                f"{name} is not done ({ended.outcome}): {ended.error or ended.summary}"
            )
        if kind is None:
            return None
        if kind not in _JSON_TYPES:
            return ended.summary
        try:
            value = json.loads(ended.summary)
        except (ValueError, RecursionError):
            value = None
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ModelError(
                f"{name} returns {_JSON_TYPES[kind]}; the model gave {short_repr(ended.summary)}"
            )
        return value

    return read
