"""Reading what is none of its business: accounts, keys, settings of the user, other secrets."""

import sys
from pathlib import Path

import pytest

from tests.attacks.conftest import Place

pytestmark = pytest.mark.anyio

# Where people keep what opens other doors, below their home.
DOTFILES = """.ssh/id_rsa .ssh/config .aws/credentials .config/gcloud/credentials.db .azure/token
    .kube/config .docker/config.json .netrc .git-credentials .npmrc .pypirc .gnupg/private-keys
    .bash_history .local/share/keyrings/login.keyring .config/gh/hosts.yml""".split()


@pytest.fixture
def home(tmp_path: Path, mark: str) -> Path:
    """A home full of secrets that the modes of files do not protect."""
    tmp_path.chmod(0o777)
    for name in DOTFILES:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(mark)
        file.chmod(0o666)
    for folder in tmp_path.rglob("*"):
        if folder.is_dir():
            folder.chmod(0o777)
    return tmp_path


READ_ALL = """
import os, sys
for path in sys.argv[1:]:
    for way in (path, "/proc/self/root" + path, "/proc/1/root" + path, "/proc/self/cwd/../" + path):
        try:
            with open(way, "rb", buffering=0) as file:
                print(way, file.read(4096))
        except OSError as error:
            print(way, error.errno)
"""


async def test_the_users_keys_and_settings_are_out_of_reach(
    place: Place, home: Path, mark: str
) -> None:
    lines = await place.python(READ_ALL, *(str(home / name) for name in DOTFILES))
    assert len(lines) == 4 * len(DOTFILES)
    assert not [line for line in lines if mark in line]


async def test_links_in_the_workspace_lead_to_no_key(place: Place, home: Path, mark: str) -> None:
    for name in (".ssh/id_rsa", ".aws/credentials"):
        link = place.workspace / Path(name).name
        link.unlink(missing_ok=True)
        link.symlink_to(home / name)
        result = await place.bash(f"cat {link.name}; cat ./{link.name}; cp {link.name} copy")
        assert result.exit_code != 0
        assert mark not in result.stdout


ACCOUNTS = [
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/shadow-",
    "/etc/sudoers",
    "/etc/ssh/ssh_host_rsa_key",
]


async def test_no_password_of_the_machine_is_read(place: Place) -> None:
    lines = await place.python(READ_ALL, *ACCOUNTS)
    assert len(lines) == 4 * len(ACCOUNTS)
    assert not [line for line in lines if "b'" in line]


MEMORY = """/dev/mem /dev/kmem /dev/port /proc/kcore /proc/kmsg /dev/kmsg
    /proc/1/mem /sys/kernel/debug /sys/kernel/security
    /sys/firmware /proc/sched_debug /proc/timer_list /proc/keys""".split()


async def test_no_memory_of_the_kernel_or_of_our_processes_is_read(place: Place) -> None:
    text = """
    import os, sys
    for path in sys.argv[1:]:
        try:
            if os.path.isdir(path):
                print(path, len(os.listdir(path)))
                continue
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            data = os.read(fd, 4096)
            print(path, len(data))
        except OSError:
            print(path, 0)
    """
    found = dict(line.split() for line in await place.python(text, *MEMORY))
    if not place.traits.isolates_processes:
        del found["/proc/keys"]  # The names of the user's keys; nothing in them can be asked for.
    assert {path for path, size in found.items() if size != "0"} == set()


async def test_files_of_kakoi_offer_no_way_out(place: Place, mark: str) -> None:
    """Its code may be shown to run the runner; nothing of it can be changed."""
    ours = Path(sys.modules["kakoi"].__file__ or "").parent
    await place.bash(f"echo '# {mark}' >> {ours}/__init__.py; touch {ours}/{mark}.py")
    assert mark not in (ours / "__init__.py").read_text()
    assert not (ours / f"{mark}.py").exists()
