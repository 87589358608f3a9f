"""Models for tests: pydantic-ai's function model with a script, and tools in memory."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from kakoi.agents.conversation import ToolDescription, ToolReply, ToolRequest
from kakoi.agents.events import AgentEvent
from kakoi.agents.models import Prices, PydanticModel
from kakoi.errors import ModelError

Said = str | ToolCallPart | Sequence[ToolCallPart] | ModelResponse | BaseException
PRICES = Prices(input=1000.0, output=1000.0)


def call(tool: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool_name=tool, args=arguments)


def done(summary: str = "all done", **more: Any) -> ToolCallPart:
    return call("done", summary=summary, **more)


class Script:
    """Gives the answers in order, repeats the last one, and records every request."""

    def __init__(self, *said: Said | Callable[[str], Said], tokens: int = 10) -> None:
        self._said = list(said)
        self._tokens = tokens
        self.asked: list[list[ModelMessage]] = []
        self.tools: list[str] = []
        self.instructions = ""

    @property
    def model(self) -> PydanticModel:
        return PydanticModel(FunctionModel(self, model_name="scripted"), prices=PRICES)

    async def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(list(messages))
        self.tools = [tool.name for tool in info.function_tools]
        self.instructions = info.instructions or ""
        said = self._said.pop(0) if len(self._said) > 1 else self._said[0]
        if callable(said):
            said = said(self.last_heard)
        await asyncio.sleep(0)
        return self._response(said)

    @property
    def last_heard(self) -> str:
        """The content of the last message to the model."""
        return "\n".join(str(getattr(part, "content", "")) for part in self.asked[-1][-1].parts)

    def _response(self, said: Said) -> ModelResponse:
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, ModelResponse):
            return said
        parts: list[Any]
        if isinstance(said, str):
            parts = [TextPart(said)]
        else:
            parts = [said] if isinstance(said, ToolCallPart) else list(said)
        usage = RequestUsage(input_tokens=self._tokens, output_tokens=1)
        return ModelResponse(parts=parts, usage=usage)


class ToolsInMemory:
    """Tools that give predefined answers. `called` records the calls."""

    def __init__(self, **answers: str | Callable[[Mapping[str, Any]], str | ToolReply]) -> None:
        self._answers = answers
        self.called: list[ToolRequest] = []

    @property
    def tools(self) -> list[ToolDescription]:
        return [
            ToolDescription(name=name, doc="A tool.", schema={"type": "object"})
            for name in self._answers
        ]

    async def call(self, request: ToolRequest) -> ToolReply:
        self.called.append(request)
        answer = self._answers.get(request.tool)
        if answer is None:
            return ToolReply(
                request=request, text=f"there is no tool {request.tool!r}", is_error=True
            )
        said = answer if isinstance(answer, str) else answer(request.arguments)
        return said if isinstance(said, ToolReply) else ToolReply(request=request, text=said)


class HangingTools(ToolsInMemory):
    """Tools that never answer. `given_up` records the cancelled calls."""

    def __init__(self) -> None:
        super().__init__(wait="")
        self.given_up: list[str] = []
        self.is_waiting = asyncio.Event()

    async def call(self, request: ToolRequest) -> ToolReply:
        self.called.append(request)
        self.is_waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up.append(request.tool)
            raise
        raise AssertionError("nobody sets it")


class Ear:
    """A listener that records events."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []

    def __call__(self, event: AgentEvent) -> None:
        self.events.append(event)

    def heard(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class FailingModel:
    """Raises these errors one after the other, then answers from the script."""

    name = "failing"
    is_priced = False

    def __init__(self, *errors: ModelError, script: Script) -> None:
        self._errors = list(errors)
        self._model = script.model
        self.sizes: list[int] = []

    async def ask(
        self, instructions: str, turns: Sequence[Any], tools: Sequence[ToolDescription]
    ) -> Any:
        self.sizes.append(len(str(turns)))
        if self._errors:
            raise self._errors.pop(0)
        return await self._model.ask(instructions, turns, tools)
