"""Commit, push and open a pull request for a feature: `python examples/auto_pr.py NAME`.

Run in a repository with changes. Pushing needs a way to the remote and `gh` an account, which a
sandbox does not have: `sandbox = "host"` in the section [shell] of security.toml gives them ours.
"""

import asyncio
import sys

from kakoi.builtin import git_commit, git_create_pr, git_push, git_status


async def auto_pr(feature: str) -> str:
    status = await git_status()
    if "nothing to commit" in status:
        return "No changes to commit"
    await git_commit(f"feat: implement {feature}", all=True)
    await git_push()
    address = await git_create_pr(
        title=f"feat: implement {feature}", body=f"This change implements {feature}."
    )
    return f"✓ PR created: {address.strip()}"


if __name__ == "__main__":
    print(asyncio.run(auto_pr(sys.argv[1] if len(sys.argv) > 1 else "a feature")))
