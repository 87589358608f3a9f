"""Secrets leave a text, and everything else stays."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi import redact as redact_module
from kakoi.redact import REDACTED, is_secret_name, redact

# Made up, and put together here so that no scanner takes this file for a leak.
ALNUM36 = "aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0bC3dE6"
SECRETS = {
    "github classic": "ghp_" + ALNUM36,
    "github oauth": "gho_" + ALNUM36,
    "github app": "ghs_" + ALNUM36,
    "github fine-grained": "github_pat_" + "11ABCDEFG0" + ALNUM36 + "_" + ALNUM36,
    "gitlab": "glpat-" + "x9-Yz8_Wv7Uu6Tt5Ss4R",
    "openai": "sk-" + ALNUM36,
    "openai project": "sk-proj-" + ALNUM36 + "-" + ALNUM36,
    "anthropic": "sk-ant-api03-" + ALNUM36 + "_" + ALNUM36 + "-AA",
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "aws session": "ASIA" + "IOSFODNN7EXAMPLE",
    "slack bot": "xoxb-" + "123456789012-123456789012-" + ALNUM36[:24],
    "google": "AIza" + "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q",
    "npm": "npm_" + ALNUM36,
    "pypi": "pypi-AgEIcHlwaS5vcmc" + ALNUM36,
    "hugging face": "hf_" + ALNUM36,
    "stripe": "sk_live_" + ALNUM36[:24],
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize(
    "carrier",
    [
        "{}",
        "see {} there",
        "x={}",
        '"{}"',
        "({}),",
        "https://host/path/{}/more",
        "line\n{}\nline",
        r"line\n{}\nline",
        "a%3D{}&b",
        "\x1b[31m{}\x1b[0m",
        "日本{}語",
    ],
)
def test_a_well_known_token_is_removed_wherever_it_stands(secret: str, carrier: str) -> None:
    redacted = redact(carrier.format(secret))
    assert secret not in redacted
    assert secret[8:] not in redacted
    assert REDACTED in redacted


# (what goes in, what comes out): `hunter2` stands for every secret.
PAIRS = [
    ("password=hunter2", "password=[redacted]"),
    ("PASSWORD=hunter2 make", "PASSWORD=[redacted] make"),
    ("export DB_PASSWORD='hunter 2'", "export DB_PASSWORD='[redacted]'"),
    ('export DB_PASS="hunter2"', 'export DB_PASS="[redacted]"'),
    ("PGPASSWORD=hunter2 psql -h db", "PGPASSWORD=[redacted] psql -h db"),
    ("MYSQL_PWD=hunter2", "MYSQL_PWD=[redacted]"),
    ("SSHPASS=hunter2", "SSHPASS=[redacted]"),
    ("token: hunter2", "token: [redacted]"),
    ("  password: hunter2  # prod", "  password: [redacted]  # prod"),
    ("password = hunter2", "password = [redacted]"),
    ('{"password": "hunter2", "user": "bob"}', '{"password": "[redacted]", "user": "bob"}'),
    ('{"apiKey":"hunter2"}', '{"apiKey":"[redacted]"}'),
    ("{'client_secret': 'hunter2'}", "{'client_secret': '[redacted]'}"),
    (r"{\"token\": \"hunter2\"}", r"{\"token\": \"[redacted]\"}"),
    (r'"password": "hun\"ter2", x', '"password": "[redacted]", x'),
    (r"line\npassword=hunter2", r"line\npassword=[redacted]"),
    (r"line\ntoken=hunter2", r"line\ntoken=[redacted]"),
    ("mysql --password hunter2 db", "mysql --password [redacted] db"),
    ("mysql --password=hunter2 db", "mysql --password=[redacted] db"),
    ("gh --token 'hunter 2' repo", "gh --token '[redacted]' repo"),
    ("tool --api-key hunter2", "tool --api-key [redacted]"),
    ("https://host/?token=hunter2&user=bob", "https://host/?token=[redacted]&user=bob"),
    ("f(password=hunter2, user=bob)", "f(password=[redacted], user=bob)"),
    ("AWS_SECRET_ACCESS_KEY=hunter2", "AWS_SECRET_ACCESS_KEY=[redacted]"),
    ("//registry.example.org/:_authToken=hunter2", "//registry.example.org/:_authToken=[redacted]"),
    ("_auth=hunter2", "_auth=[redacted]"),
    ("password='hunter2", "password='[redacted]"),  # cut in the middle
    ("os.environ['API_TOKEN'] = 'hunter2'", "os.environ['API_TOKEN'] = '[redacted]'"),
    ("token := hunter2", "token := [redacted]"),
    ("{:secret => 'hunter2'}", "{:secret => '[redacted]'}"),
    ("<password>hunter2</password>", "<password>[redacted]</password>"),
    ("machine h login bob password hunter2", "machine h login bob password [redacted]"),
    ("Authorization: Bearer hunter2", "Authorization: Bearer [redacted]"),
    ("Authorization: Basic hunter2", "Authorization: Basic [redacted]"),
    ("authorization: token hunter2", "authorization: token [redacted]"),
    ("Proxy-Authorization: Basic hunter2==", "Proxy-Authorization: Basic [redacted]"),
    ('-H "Authorization: Bearer hunter2" x', '-H "Authorization: Bearer [redacted]" x'),
    ('{"Authorization": "Bearer hunter2"}', '{"Authorization": "Bearer [redacted]"}'),
    ("Authorization: Digest username=bob, response=hunter2", "Authorization: Digest [redacted]"),
    ("Authorization: hunter2hunter2", "Authorization: [redacted]"),
    ("X-Api-Key: hunter2", "X-Api-Key: [redacted]"),
    ("Cookie: session=hunter2; a=b", "Cookie: [redacted]"),
    ("Set-Cookie: session=hunter2; Path=/", "Set-Cookie: [redacted]"),
    ("sent bearer hunter2hunter2", "sent bearer [redacted]"),
    ("sent Basic Ym9iOmh1bnRlcjI= to", "sent Basic [redacted] to"),
    ("https://bob:hunter2@host/x", "https://[redacted]@host/x"),
    ("https://hunter2@host/x", "https://[redacted]@host/x"),
    ("git+https://hunter2@host/x", "git+https://[redacted]@host/x"),
    ("https://bob:hunter2@2@host/x", "https://[redacted]@host/x"),
    ("postgres://bob:hunter2@db:5432/app", "postgres://[redacted]@db:5432/app"),
    ("redis://:hunter2@cache", "redis://[redacted]@cache"),
    ("ssh://bob:hunter2@host", "ssh://[redacted]@host"),
    ("curl -u bob:hunter2 https://host", "curl -u bob:[redacted] https://host"),
    ("curl --user 'bob:hunter2' https://host", "curl --user 'bob:[redacted]' https://host"),
]


@pytest.mark.requirement("X-40")
@pytest.mark.parametrize(("text", "redacted"), PAIRS)
def test_the_value_goes_and_its_surroundings_stay(text: str, redacted: str) -> None:
    assert redact(text) == redacted


FRICTION = """
token bucket
the token: a bucket that refills
pass
pass: 3, fail: 0
all tests pass: yes
first_pass=3
Authorization failed
Authorization: failed
Authorization: required
author: x
Author: Ada Lovelace <ada@example.com>
commit 1f3870be274f6c49b3e31a0c6728957f1f3870be
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
--password-file x
--password-stdin
--password --user bob
--token-bucket 5
/etc/passwd
/run/secrets/db_password
cat password.txt
cat ~/.ssh/id_ed25519.pub
password: str
password: str = None
def login(user: str, password: str, token: bytes) -> None:
password: Optional[str] = None
token = get_token()
token = lexer.next()
password=password
password=self.password
token=args.token
password=$DB_PASSWORD
password="${DB_PASSWORD}"
password=$(cat /run/secrets/db)
password={password}
password: {{ vault_password }}
password=<your password>
password: ****
password=""
secrets: inherit
token: expired
Password: required
Error: invalid token: the token has expired
max_tokens=4096
"prompt_tokens": 12, "completion_tokens": 7
tokens: 42
eos_token: </s>
primary_key=17
public_key: ssh-ed25519
cache_key=build-3
sort --key 2
keyboard: us
monkey=3
tokenizer = bpe
passwordless: yes
secretary: Bob
compass=north
PWD=/work
OLDPWD=/work
git@github.com:org/repo.git
ssh://git@github.com/org/repo
https://example.com/a@b
https://example.com:8080/path
https://registry:5000/image@sha256:abc
http://example.com?mail=a@b.example
pip install foo==1.2.3
bob@example.com
docker run -u 1000:1000 image
chown --user root:root
basic functionality
Basic authentication is off
the bearer of this letter
bearer authentication
sk-fix-the-login-page-of-the-shop
task-12345678901234567890
npm_config_registry=https://r.example
npm_package_json_with_a_long_name_indeed
-----BEGIN PUBLIC KEY-----
grep -c "-----BEGIN RSA PRIVATE KEY-----" file
cookie: the best of all
Makefile:12: *** missing separator.  Stop.
key: value
x: y
a = b
awk '{ print $1 }'
for token in tokens:
if token == END:
日本語: テスト
"""


@pytest.mark.parametrize("text", FRICTION.strip().splitlines())
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


KEY_LINES = "\n".join(["MIIEpAIBAAKCAQEA" + ALNUM36 + "abcdefghij+/"] * 4)


@pytest.mark.parametrize("kind", ["RSA ", "EC ", "OPENSSH ", "ENCRYPTED ", ""])
def test_a_private_key_goes_and_the_text_around_it_stays(kind: str) -> None:
    block = f"-----BEGIN {kind}PRIVATE KEY-----\n{KEY_LINES}\n-----END {kind}PRIVATE KEY-----"
    redacted = redact(f"before\n{block}\nafter")
    assert KEY_LINES.splitlines()[0] not in redacted
    assert redacted.startswith("before\n-----BEGIN")
    assert redacted.endswith(f"-----END {kind}PRIVATE KEY-----\nafter")


def test_a_private_key_that_is_cut_off_or_escaped_goes_too() -> None:
    cut = f"-----BEGIN RSA PRIVATE KEY-----\n{KEY_LINES}"
    for text in (cut, json.dumps(cut)):
        assert "MIIEpAIBAAKCAQEA" not in redact(text)


FORMS: list[Callable[[str], str]] = [
    lambda secret: secret,
    lambda secret: quote(secret, safe=""),
    lambda secret: quote(secret, safe="").lower(),
    lambda secret: json.dumps(secret),
    lambda secret: base64.b64encode(secret.encode()).decode(),
    lambda secret: base64.urlsafe_b64encode(secret.encode()).decode(),
    lambda secret: base64.b64encode(f"u:{secret}".encode()).decode(),
    lambda secret: base64.b64encode(f"us:{secret}:x".encode()).decode(),
    lambda secret: base64.b64encode(f"use:{secret}".encode()).decode(),
]


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_that_we_are_told_goes_in_every_form(form: Callable[[str], str]) -> None:
    secret = 'p@ss "w/rd>+?~'
    text = f"before {form(secret)} after"
    redacted = redact(text, [secret])
    assert redacted.startswith("before ")
    assert redacted.endswith(" after")
    assert REDACTED in redacted
    assert len(redacted) <= len("before [redacted] after") + 12


def test_a_single_secret_may_be_given_as_it_is() -> None:
    assert redact("say abracadabra twice", "abracadabra") == "say [redacted] twice"


def test_empty_secrets_are_no_secrets() -> None:
    assert redact("a b c", ["", " ", "\n"]) == "a b c"


def test_a_secret_that_is_part_of_another_does_not_save_its_rest() -> None:
    assert redact("x longsecret y", ["long", "longsecret"]) == "x [redacted] y"


@pytest.mark.parametrize("secret", ["red", "[", "]", "e", "redacted", "[redacted]"])
def test_a_secret_that_looks_like_the_mark_does_no_harm(secret: str) -> None:
    once = redact(f"a {secret} b", [secret])
    assert once == redact(once, [secret])
    assert len(once) < 100


SECRET_NAMES = """
PASSWORD password DB_PASSWORD PGPASSWORD MYSQL_PWD DB_PASS SSHPASS PASSPHRASE GPG_PASSPHRASE
TOKEN GITHUB_TOKEN GITHUB_TOKENS NPM_TOKEN _authToken accessToken ACCESS_TOKEN_2 CI_JOB_TOKEN
SECRET CLIENT_SECRET clientSecret SECRET_KEY SECRET_KEY_BASE AWS_SECRET_ACCESS_KEY
AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN OPENAI_API_KEY ANTHROPIC_API_KEY apiKey APIKEY api_keys
PRIVATE_KEY SSH_PRIVATE_KEY ENCRYPTION_KEY GOOGLE_APPLICATION_CREDENTIALS CREDENTIALS
GITHUB_PAT SSH_AUTH_SOCK X-Api-Key X-Auth-Token Authorization HTTP_AUTHORIZATION
AZURE_STORAGE_CONNECTION_STRING AZURE_STORAGE_KEY SESSION_COOKIE VAULT_SECRET_ID
"""
OTHER_NAMES = """
PATH HOME LANG LC_ALL TERM TZ USER SHELL TMPDIR PWD OLDPWD EDITOR PAGER COMP_KEY KEY key
PASSWORD_FILE password-file TOKEN_URL TOKEN_TYPE tokens max_tokens MAX_TOKENS tokenizer pass
first_pass author AUTHOR secretary primary_key PUBLIC_KEY cache_key monkey compass bypass
eos_token next_token GIT_AUTHOR_NAME DATABASE_HOST id cookie pattern glob_pat
"""


@pytest.mark.requirement("X-15")
@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_a_name_says_that_its_value_is_a_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", [*OTHER_NAMES.split(), "", "1", "_", "日本"])
def test_a_name_says_that_its_value_is_none(name: str) -> None:
    assert not is_secret_name(name)


# Pieces that the patterns are made of, in every order.
FRAGMENTS = [
    *SECRETS.values(),
    *("password", "token", "=", ": ", " ", '"', "'", "\\", "\\n", "\n", "--", "-", "://", "@"),
    *("https", ":", "/", "Bearer ", "Basic ", "Authorization", "Cookie", "Set-Cookie", "a=b"),
    *("curl -u ", "login x ", "<password>", "</password>", REDACTED, "[", "]", "redacted", ","),
    *("$X", "{", "}", "(", ")", "hunter2", "xyz", "sk-", "eyJ", ".", "ghp_", "AKIA", "%3D", "m"),
    *("-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----", "A" * 44, "&", ";"),
]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join))


@given(text=TEXTS, secrets=st.lists(st.text(max_size=12), max_size=3))
def test_redacting_twice_changes_nothing_more_and_never_raises(
    text: str, secrets: list[str]
) -> None:
    once = redact(text, secrets)
    assert redact(once, secrets) == once


@given(before=TEXTS, after=TEXTS, secret=st.text(min_size=4, max_size=20))
def test_a_secret_that_we_are_told_is_never_left(before: str, after: str, secret: str) -> None:
    if secret.strip() and REDACTED not in secret:
        redacted = redact(before + secret + after, [secret])
        assert secret not in redacted.replace(REDACTED, "\0")


@given(
    name=st.sampled_from(["password", "API_TOKEN", "client-secret", "apiKey"]),
    value=st.from_regex(r"[a-z]{4}[0-9]{4}[A-Za-z0-9!?*+#%^_~/-]{0,20}", fullmatch=True),
    carrier=st.sampled_from(["{}={}", "{}: {}", '"{}": "{}"', "--{} {}", "--{}={}", "{}='{}'"]),
)
def test_a_named_value_is_never_left(name: str, value: str, carrier: str) -> None:
    assert value[:8] not in redact("x " + carrier.format(name, value) + "\n")


@given(text=st.text(alphabet="abcdefghijklmnopqrstuvwxyz ,.\n", max_size=200))
def test_plain_words_are_never_touched(text: str) -> None:
    assert redact(text) == text


HOSTILE = [
    *("a", "-", "://a", "://a:", "eyJ-", "eyJaaaaaaaaa.", "sk-a", "password=", "password={"),
    *('password="', 'token=\\"', "Cookie: ", "Authorization: ", "login a password"),
    *("-----BEGIN RSA PRIVATE KEY-----a", "<password>a", "curl -u a", "Bearer aaaaaa "),
]
CPU_LIMIT_S = 30
READ_AND_REDACT = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_LIMIT_S}, {CPU_LIMIT_S}))
from kakoi.redact import redact
redact((sys.argv[1] * 2**20)[: 2**20], ["hunter2"])
"""


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_mebibyte_made_to_be_slow_is_not(piece: str) -> None:
    """Work that grows with the square of the text would take hours of processor time here."""
    source = Path(redact_module.__file__).parents[1]
    command = [sys.executable, "-c", READ_AND_REDACT, piece]
    done = subprocess.run(command, env={"PYTHONPATH": str(source)}, timeout=600, check=False)
    assert done.returncode == 0
