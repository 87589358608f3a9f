# Changed: the import names.
from kakoi import agent
from kakoi.builtin import shell

@agent(model="gpt-4o-mini")
async def setup_python_project(project_name: str) -> str:
    """
    Setup a new Python project with {{ project_name }}.
    """
    commands = [
        f"mkdir {project_name}",
        f"cd {project_name}",
        "uv init",
        "uv add pytest pyright ruff",
        "mkdir src tests docs",
        "git init",
        'git add .',
        'git commit -m "Initial commit"'
    ]

    results = []
    for cmd in commands:
        result = await shell(cmd)
        results.append(f"✓ {cmd}")

    return "\n".join(results)
