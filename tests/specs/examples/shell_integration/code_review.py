# Changed: the import names.
from kakoi import agent
from kakoi.builtin import shell, grep_content, file_search

@agent(model="gpt-4o-mini")
async def code_review_checklist() -> dict:
    """
    Run automated code review checklist.
    """
    issues = {}

    # 1. Find Python files
    py_files = await file_search("*.py", directory="src/")

    # 2. Check for TODO comments
    todos = await grep_content("TODO", py_files)
    if todos:
        issues["todos"] = todos

    # 3. Check for print statements (should use logging)
    prints = await grep_content("print(", py_files)
    if prints:
        issues["print_statements"] = prints

    # 4. Run type checker
    pyright_output = await shell("pyright src/")
    if "error" in pyright_output.lower():
        issues["type_errors"] = pyright_output

    return issues
