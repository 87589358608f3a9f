"""With `policy.packages: allowlist`, commands install nothing themselves."""

from pathlib import Path

import pytest

from kakoi.errors import ConfigurationError
from kakoi.policy.decide import decide
from kakoi.policy.profiles import PROFILES
from kakoi.policy.rules import Verdict
from kakoi.settings.loader import load_settings
from kakoi.settings.model import PolicySettings
from kakoi.settings.policy import policy_from

DIRECT = [
    *(
        "pip install x",
        "pip3 install -r requirements.txt",
        "python3 -m pip install x",
        "pip download x",
    ),
    *(
        "npm install x",
        "npm i x",
        "npm ci",
        "npm add x",
        "npm isntall",
        "yarn add x",
        "pnpm add x",
        "bun add x",
        "yarn",
        "yarn --frozen-lockfile",
        "yarn --cwd app",
        "cd app && yarn",
    ),
    *(
        "uv add x",
        "uv pip install x",
        "uv tool install x",
        "uv run --with x pytest",
        "poetry add x",
    ),
    *(
        "cd app && pip install x",
        "sh -c 'pip install x'",
        "env A=1 pip install x",
        "echo x | xargs pip install",
    ),
    *(
        "apt-get install x",
        "apt install x",
        "gem install x",
        "cargo install x",
        "go install x",
        "npx cowsay",
    ),
]


def judge(command: str, *, packages: str, profile: str = "coding-agent") -> tuple[Verdict, str]:
    settings = PolicySettings(packages=packages, profile=profile)
    decision = decide(policy_from(settings, roots=["/w"], origin="test"), command, cwd="/w")
    return decision.verdict, " ".join(finding.hint for finding in decision.findings)


@pytest.mark.requirement("X-34")
@pytest.mark.parametrize("command", DIRECT)
def test_a_direct_installation_is_refused_and_the_installer_named(command: str) -> None:
    verdict, hint = judge(command, packages="allowlist")
    assert verdict is Verdict.DENY
    assert "install.sh TYPE PACKAGE" in hint


@pytest.mark.requirement("X-34")
@pytest.mark.parametrize("command", ["install.sh pip requests", "/usr/local/bin/install.sh npm x"])
def test_the_installer_may_run(command: str) -> None:
    assert judge(command, packages="allowlist")[0] is Verdict.ALLOW
    assert judge(command, packages="unrestricted")[0] is Verdict.DENY


@pytest.mark.parametrize("command", ["pip list", "npm test", "npm run build", "uv run pytest", "npx eslint .", "echo 'pip install x'", "yarn --version", "yarn -h", "yarn test", "npm adduser"])  # fmt: skip
def test_what_installs_nothing_is_left_alone(command: str) -> None:
    assert judge(command, packages="allowlist") == judge(command, packages="unrestricted")


@pytest.mark.requirement("X-34")
def test_packages_are_unrestricted_unless_somebody_says_so() -> None:
    assert PolicySettings().packages == "unrestricted"
    assert judge("pip install x", packages="unrestricted")[0] is Verdict.ALLOW


@pytest.mark.parametrize("profile", PROFILES)
def test_the_rules_fit_every_profile(profile: str) -> None:
    assert judge("pip install x", packages="allowlist", profile=profile)[0] is Verdict.DENY


@pytest.mark.requirement("X-34")
def test_the_setting_has_the_name_of_the_requirement(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("packages:\n  policy: allowlist\n  allowlist: /etc/allowlist\n")
    settings = load_settings(environ={}, config_file=file).settings
    assert settings.policy.packages == "allowlist"
    assert settings.packages.allowlist == "/etc/allowlist"


def test_a_project_does_not_say_what_may_be_installed(tmp_path: Path) -> None:
    (tmp_path / ".kakoi.yaml").write_text("packages:\n  policy: unrestricted\n")
    with pytest.raises(ConfigurationError, match="a project cannot set"):
        load_settings(tmp_path, environ={"HOME": str(tmp_path / "home")})
