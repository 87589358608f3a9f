"""Folders of a user, where the XDG specification wants them."""

import os
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kakoi._support.user_folders import cache_folder, config_folder, state_folder
from kakoi.errors import ConfigurationError

FOLDERS = [
    (config_folder, "XDG_CONFIG_HOME", "/h/.config/kakoi"),
    (state_folder, "XDG_STATE_HOME", "/h/.local/state/kakoi"),
    (cache_folder, "XDG_CACHE_HOME", "/h/.cache/kakoi"),
]


@pytest.mark.parametrize(("folder", "variable", "usual"), FOLDERS)
def test_a_variable_goes_first_if_it_is_absolute(
    folder: Callable[[Mapping[str, str]], Path], variable: str, usual: str
) -> None:
    assert folder({"HOME": "/h"}) == Path(usual)
    assert folder({"HOME": "/h", variable: "/x"}) == Path("/x/kakoi")
    assert folder({"HOME": "/h", variable: "x"}) == Path(usual)
    assert folder({"HOME": "", variable: "/x"}) == Path("/x/kakoi")


def test_without_a_word_it_is_the_home_that_the_machine_knows() -> None:
    home = pwd.getpwuid(os.geteuid()).pw_dir
    assert state_folder({}) == Path(home, ".local/state/kakoi")


def test_a_user_without_any_home_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
    with pytest.raises(ConfigurationError, match="HOME is not set") as caught:
        state_folder({})
    assert "set HOME" in caught.value.hint
