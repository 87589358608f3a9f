"""Names whose owner changes where they lead, between a check and a connection: by real DNS."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WAIT_S = 120.0
PUBLIC = "93.184.216.34:80"
OK, REFUSED, GONE = "HTTP/1.1 200 OK", "HTTP/1.1 403 Forbidden", "HTTP/1.1 502 Bad Gateway"
# A machine with addresses that are nobody else's, and names that its own server answers for.
MACHINE = """
ip link set lo up
for address in 93.184.216.34 169.254.169.254 10.9.8.7; do ip address add $address/32 dev lo; done
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
exec "$2" -m tests.network.rebinding_world
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    folder = tmp_path_factory.mktemp("etc")
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions attempts:1 timeout:5\n")
    (folder / "nsswitch.conf").write_text("hosts: dns\n")
    own = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--propagation", "private"]
    done = subprocess.run(
        [*own, "sh", "-ec", MACHINE, "sh", folder, sys.executable],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[object]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("network", ["listed", "open"])
@pytest.mark.parametrize(
    ("name", "answers", "reached"),
    [
        # Asked for at 80, at 80 again, at 81 where nobody public listens, and by a tunnel to 81.
        ("flips.example", [OK, REFUSED, REFUSED, REFUSED], [PUBLIC]),
        ("inward.example", [OK, REFUSED, REFUSED, REFUSED], [PUBLIC]),
        ("mixed.example", [OK, OK, GONE, GONE], [PUBLIC]),
        ("half.example", [OK, OK, GONE, GONE], [PUBLIC]),
        ("inside.example", [REFUSED] * 4, []),
        ("alias.example", [REFUSED] * 4, []),
        ("six.example", [REFUSED] * 4, []),
    ],
)
def test_only_an_address_that_was_checked_is_connected_to(
    told: dict[str, list[object]], network: str, name: str, answers: list[str], reached: list[str]
) -> None:
    """Each connection asks once, so the answer that was checked is the one that is used."""
    assert told[f"{network} {name}"] == [answers, 4, reached]
