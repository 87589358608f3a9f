# Changed: the import names. Run with top-level `await`, as `python -m asyncio` does.
from kakoi.builtin import shell, git_commit, git_push, file_search

# Shell command execution
output = await shell("ls -la")
print(output)

# Git operations
await git_commit("feat: add new feature", files=["src/main.py"])
await git_push()

# File operations
files = await file_search("test", directory="./tests", file_type="*.py")
print(files)
