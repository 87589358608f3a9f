# tests/builtin/test_git.py
# Changed: the import names; the mark is anyio's, the plug-in for coroutines that this project has;
# what the example leaves out ("create test git repo") is written out; the status has a repository.
import subprocess

import pytest
from kakoi.builtin import git_status, git_commit

@pytest.fixture(autouse=True)
def test_repo(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for key, value in {"user.name": "A Tester", "user.email": "tester@example.com"}.items():
        subprocess.run(["git", "-C", tmp_path, "config", key, value], check=True)
    (tmp_path / "file").write_text("content")
    monkeypatch.chdir(tmp_path)

@pytest.mark.anyio
async def test_git_status():
    status = await git_status()
    assert isinstance(status, str)

@pytest.mark.anyio
async def test_git_commit(tmp_path):
    # Setup test repo
    # ... (create test git repo)

    result = await git_commit("test commit", all=True)
    assert "test commit" in result
