"""A review checklist for the Python files below src/: `python examples/code_review.py`."""

import asyncio
import json

from kakoi.builtin import file_search, grep_content, shell
from kakoi.errors import CommandFailedError


async def code_review_checklist() -> dict[str, object]:
    issues: dict[str, object] = {}
    files = await file_search("*.py", directory="src/")
    if todos := await grep_content("TODO", files):
        issues["todos"] = todos
    if prints := await grep_content("print(", files):
        issues["print_statements"] = prints
    try:
        await shell("git diff --check HEAD")
    except CommandFailedError as error:
        issues["whitespace"] = str(error)
    return issues


if __name__ == "__main__":
    print(json.dumps(asyncio.run(code_review_checklist()), indent=2))
