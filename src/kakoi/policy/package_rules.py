"""The rules for when only listed packages may be installed, and the installer they point to.

Advice, not a wall: an allowed program can still fetch anything that its network lets it reach.
"""

from collections.abc import Mapping
from typing import Any, Final

# Part of kakoi's images: images/install.sh.
INSTALLER: Final = "install.sh"
HINT: Final = (
    "Use the installer: `install.sh TYPE PACKAGE` in a kakoi image, or ask your user to run "
    "`kakoi install TYPE PACKAGE`. TYPE is apt, pip or npm."
)
_REASON: Final = "only packages on the list are installed here, and `{subject}` does not look there"

_PYTHON: Final = (
    *(f"{pip} {word}" for pip in ("pip", "pip3") for word in ("install", "download", "wheel")),
    *("uv add", "uv sync", "uv tool", "uvx", "pipx install", "pipx run", "pipx inject"),
    *("poetry add", "poetry install", "poetry update", "poetry sync"),
    *("pdm add", "pdm install", "pdm update", "pdm sync"),
    *("pipenv install", "pipenv update", "pipenv sync"),
    *("conda install", "conda create", "conda env", "mamba install", "mamba create", "mamba env"),
)
# npm has many names for the same subcommand; the others have some of them.
_NODE_WORDS: Final = """install i in ins inst insta instal isnt isnta isntal isntall add ci ic
    clean-install install-clean isntall-clean install-test it cit install-ci-test update up upgrade
    udpate dlx import link ln""".split()
_NODE: Final = tuple(
    f"{program} {word}" for program in ("npm", "yarn", "pnpm", "bun") for word in _NODE_WORDS
)
_SYSTEM: Final = ("apt", "apt-get", "aptitude", "dpkg")
_OTHERS: Final = (
    *("gem install", "gem update", "bundle install", "bundle add", "bundle update"),
    *("cargo install", "cargo add", "go get", "go install"),
    *("composer require", "composer install", "composer update"),
)

RULES: Final[tuple[Mapping[str, Any], ...]] = (
    {
        "id": "unlisted-packages",
        "verdict": "deny",
        "commands": [*_PYTHON, *_NODE, *_SYSTEM, *_OTHERS],
        "reason": _REASON,
        "hint": HINT,
        "match": ["pip install x", "python3 -m pip install x", "npm i x", "npm ci", "yarn"],
        "not_match": ["pip list", "npm test", "yarn --version", "install.sh pip x"],
    },
    {
        "id": "unlisted-packages-by-uv",
        "verdict": "deny",
        "commands": ["uv pip"],
        "operands": ["install", "sync", "compile"],
        "reason": _REASON,
        "hint": HINT,
        "match": ["uv pip install x"],
        "not_match": ["uv pip list"],
    },
    {
        "id": "unlisted-packages-by-option",
        "verdict": "deny",
        "commands": ["uv run"],
        "flags": ["--with", "--with-editable", "--with-requirements"],
        "reason": _REASON,
        "hint": HINT,
        "match": ["uv run --with x python3 a.py"],
        "not_match": ["uv run pytest"],
    },
    {
        "id": "unlisted-package-programs",
        "verdict": "deny",
        "effects": "package-program project-program",
        "reason": _REASON,
        "hint": HINT,
        "match": ["npx cowsay"],
        "not_match": ["ls"],
    },
)
