"""The installer script, in each shell that images have."""

from collections.abc import Iterator

import pytest

from tests.packages.names import LISTS
from tests.packages.script import SHELLS, Script, a_script

# Debian's `sh` runs it in kakoi's images. Other images may have busybox's.
_AGAIN = pytest.mark.extended("repetition: the same script, read by another shell")
_SHELLS = [pytest.param(each, id=each, marks=() if each == "dash" else _AGAIN) for each in SHELLS]


@pytest.fixture(scope="module", params=_SHELLS)
def shared_script(request: pytest.FixtureRequest) -> Iterator[Script]:
    with a_script(request.param) as script:
        yield script


@pytest.fixture
def script(shared_script: Script) -> Script:
    """The script with the default lists, reset after earlier tests."""
    for kind, text in LISTS.items():
        shared_script.write_list(kind, text)
    shared_script.mend_managers()
    shared_script.calls()
    shared_script.logged()
    return shared_script
