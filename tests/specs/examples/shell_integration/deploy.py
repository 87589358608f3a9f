# Changed: the import names.
from kakoi import agent
from kakoi.builtin import shell, git_commit, git_push

@agent(model="gpt-4o-mini")
async def deploy_to_production(version: str) -> str:
    """
    Deploy version {{ version }} to production.

    Steps:
    1. Run tests
    2. Build project
    3. Tag version
    4. Push to GitHub
    5. Deploy
    """
    # 1. Run tests
    test_result = await shell("pytest tests/")
    if "FAILED" in test_result:
        return "Tests failed, aborting deployment"

    # 2. Build
    await shell("uv build")

    # 3. Git operations
    await git_commit(f"chore: release v{version}")
    await shell(f"git tag v{version}")
    await git_push()
    await shell("git push --tags")

    # 4. Deploy
    await shell(f"./scripts/deploy.sh {version}")

    return f"✓ Deployed v{version} to production"
