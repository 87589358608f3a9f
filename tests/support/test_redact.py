"""Secrets leave a text, and everything else stays."""

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi._support import redact as redact_module
from kakoi._support.redact import REDACTED, is_secret_name, redact

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
    # --- a value in several pieces
    ("TOKEN=\"hun\"'ter2' make", "TOKEN=[redacted] make"),
    ("TOKEN=hun'ter2' make", "TOKEN=[redacted] make"),
    ('TOKEN=hun"ter"2 make', "TOKEN=[redacted] make"),
    ('TOKEN="hun"ter2 make', "TOKEN=[redacted] make"),
    ("TOKEN=''hunter2 make", "TOKEN=[redacted] make"),
    ("TOKEN=$'hunter2' make", "TOKEN=$'[redacted]' make"),
    ('password = "hun" + "ter2"', "password = [redacted]"),
    ("mysql --password='hun'\"ter2\" db", "mysql --password=[redacted] db"),
    # --- options of one letter, by the program that they belong to
    ("mysql -phunter2 db", "mysql -p[redacted] db"),
    ("mysql -uroot -p'hunter 2' -e 'select 1'", "mysql -uroot -p'[redacted]' -e 'select 1'"),
    ('/usr/bin/mysqldump -u root -p"hunter2" db', '/usr/bin/mysqldump -u root -p"[redacted]" db'),
    ("docker exec db mariadb -phunter2", "docker exec db mariadb -p[redacted]"),
    ("mysql \\\n  -u root \\\n  -phunter2", "mysql \\\n  -u root \\\n  -p[redacted]"),
    ("mysqladmin -u root password hunter2", "mysqladmin -u root password [redacted]"),
    ('["mysql", "-u", "root", "-phunter2"]', '["mysql", "-u", "root", "-p[redacted]"]'),
    ("sshpass -p hunter2 ssh -p 22 h", "sshpass -p [redacted] ssh -p 22 h"),
    ("sshpass -phunter2 ssh h", "sshpass -p[redacted] ssh h"),
    ("sshpass -p 'hunter 2' scp -p a h:", "sshpass -p '[redacted]' scp -p a h:"),
    ("['sshpass', '-p', 'hunter2', 'ssh']", "['sshpass', '-p', '[redacted]', 'ssh']"),
    ("sshpass -p hun'ter'2 ssh h", "sshpass -p [redacted] ssh h"),
    (
        "a; sshpass -p hunter2 x | mysql -phunter2",
        "a; sshpass -p [redacted] x | mysql -p[redacted]",
    ),
    ("docker login -u bob -p hunter2 r.example", "docker login -u bob -p [redacted] r.example"),
    ("podman login -phunter2 r.example", "podman login -p[redacted] r.example"),
    ("helm registry login -u bob -p hunter2 r", "helm registry login -u bob -p [redacted] r"),
    (
        "az login --service-principal -u a -p hunter2",
        "az login --service-principal -u a -p [redacted]",
    ),
    (
        "openssl enc -aes-256-cbc -pass pass:hunter2",
        "openssl enc -aes-256-cbc -pass pass:[redacted]",
    ),
    ("openssl rsa -passin 'pass:hunter 2' -in k", "openssl rsa -passin 'pass:[redacted]' -in k"),
    ("openssl genrsa -passout pass:hunter2 2048", "openssl genrsa -passout pass:[redacted] 2048"),
    ("openssl enc -d -k hunter2 -in a", "openssl enc -d -k [redacted] -in a"),
    ("redis-cli -h h -a hunter2 ping", "redis-cli -h h -a [redacted] ping"),
    ("redis-cli --pass hunter2 ping", "redis-cli --pass [redacted] ping"),
    ("REDISCLI_AUTH=hunter2 redis-cli", "REDISCLI_AUTH=[redacted] redis-cli"),
    ("mongosh -u bob -p hunter2 db", "mongosh -u bob -p [redacted] db"),
    ("mongodb+srv://bob:hunter2@c.example/db", "mongodb+srv://[redacted]@c.example/db"),
    ("ldapsearch -x -D cn=a -w hunter2 -b dc=b", "ldapsearch -x -D cn=a -w [redacted] -b dc=b"),
    ("zip -P hunter2 a.zip b", "zip -P [redacted] a.zip b"),
    ("7z x -phunter2 a.7z", "7z x -p[redacted] a.7z"),
    ("ssh-keygen -t rsa -N hunter2 -f k", "ssh-keygen -t rsa -N [redacted] -f k"),
    ("keytool -list -storepass hunter2", "keytool -list -storepass [redacted]"),
    ("htpasswd -bc file bob hunter2", "htpasswd -bc file bob [redacted]"),
    ("sqlcmd -S s -U sa -P hunter2", "sqlcmd -S s -U sa -P [redacted]"),
    ("smbclient //h/s -U bob%hunter2 -c ls", "smbclient //h/s -U bob%[redacted] -c ls"),
    ("lftp -u bob,hunter2 ftp://h", "lftp -u bob,[redacted] ftp://h"),
    ("plink -pw hunter2 bob@h", "plink -pw [redacted] bob@h"),
    ("mosquitto_pub -h h -u bob -P hunter2 -t x", "mosquitto_pub -h h -u bob -P [redacted] -t x"),
    ("twine upload -u bob -p hunter2 dist/*", "twine upload -u bob -p [redacted] dist/*"),
    ("http -a bob:hunter2 h.example/x", "http -a bob:[redacted] h.example/x"),
    ("xh --auth=bob:hunter2 h.example", "xh --auth=bob:[redacted] h.example"),
    ("skopeo copy --src-creds bob:hunter2 a b", "skopeo copy --src-creds bob:[redacted] a b"),
    ("skopeo login -p hunter2 r.example", "skopeo login -p [redacted] r.example"),
    ("xfreerdp /u:bob /p:hunter2 /v:h", "xfreerdp /u:bob /p:[redacted] /v:h"),
    ("chpasswd <<< 'bob:hunter2'", "chpasswd <<< '[redacted]'"),
    (
        "npm config set //r.example/:_authToken hunter2",
        "npm config set //r.example/:_authToken [redacted]",
    ),
    (
        "aws configure set aws_secret_access_key hunter2",
        "aws configure set aws_secret_access_key [redacted]",
    ),
    ("poetry config pypi-token.pypi hunter2", "poetry config pypi-token.pypi [redacted]"),
    (r"net use X: \\srv\share hunter2 /user:bob", r"net use X: \\srv\share [redacted] /user:bob"),
    (r"net use \\srv\share /user:d\bob hunter2", r"net use \\srv\share /user:d\bob [redacted]"),
    ("net user bob hunter2 /add", "net user bob [redacted] /add"),
    ("curl --pass hunter2 -E c.pem https://h", "curl --pass [redacted] -E c.pem https://h"),
    ("curl -b 'session=hunter2' https://h", "curl -b '[redacted]' https://h"),
    ("curl --oauth2-bearer hunter2 https://h", "curl --oauth2-bearer [redacted] https://h"),
    ("wget --user=bob --password=hunter2 h", "wget --user=bob --password=[redacted] h"),
    ("echo hunter2 | sudo -S ls", "echo [redacted] | sudo -S ls"),
    (
        "echo -n 'hunter 2' | docker login --password-stdin",
        "echo -n '[redacted]' | docker login --password-stdin",
    ),
    ("echo bob:hunter2 | chpasswd", "echo [redacted] | chpasswd"),
    ("sqlplus bob/hunter2@db", "sqlplus bob/[redacted]@db"),
    ("cqlsh -u bob -p hunter2 h", "cqlsh -u bob -p [redacted] h"),
    ("crane auth login r -u bob -p hunter2", "crane auth login r -u bob -p [redacted]"),
    ("buildah push --creds bob:hunter2 a", "buildah push --creds bob:[redacted] a"),
    ("vault login hunter2", "vault login [redacted]"),
    ("cargo login 'hunter2'; ls", "cargo login '[redacted]'; ls"),
    ("ngrok config add-authtoken hunter2", "ngrok config add-authtoken [redacted]"),
    ("tailscale up --authkey hunter2", "tailscale up --authkey [redacted]"),
    ("dotnet nuget push a -k hunter2", "dotnet nuget push a -k [redacted]"),
    ("poetry config http-basic.r bob hunter2", "poetry config http-basic.r bob [redacted]"),
    ("nmcli dev wifi connect a password hunter2", "nmcli dev wifi connect a password [redacted]"),
    (
        "mount -t cifs //h/s /m -o user=a,pass=hunter2",
        "mount -t cifs //h/s /m -o user=a,pass=[redacted]",
    ),
    ("curl -E c.pem:hunter2 https://h", "curl -E c.pem:[redacted] https://h"),
    ("snmpwalk -v3 -A hunter2 h", "snmpwalk -v3 -A [redacted] h"),
    ("sudo -S id <<< hunter2", "sudo -S id <<< [redacted]"),
    ("gh auth login --with-token <<<'hunter2'", "gh auth login --with-token <<<'[redacted]'"),
    ("ALTER USER a WITH PASSWORD 'hunter2';", "ALTER USER a WITH PASSWORD '[redacted]';"),
    ("create user a identified by 'hunter 2'", "create user a identified by '[redacted]'"),
    ('SET PASSWORD FOR a = PASSWORD("hunter2")', 'SET PASSWORD FOR a = PASSWORD("[redacted]")'),
    ("set -x DB_PASSWORD hunter2", "set -x DB_PASSWORD [redacted]"),
    ("setenv API_TOKEN 'hunter 2'", "setenv API_TOKEN '[redacted]'"),
    ("port 1\nrequirepass hunter2", "port 1\nrequirepass [redacted]"),
    ("Server=h;Uid=sa;Pwd=hunter2;", "Server=h;Uid=sa;Pwd=[redacted];"),
    (":pserver:bob:hunter2@h:/r", ":pserver:bob:[redacted]@h:/r"),
    ('{"auth": "Ym9iOmh1bnRlcjI="}', '{"auth": "[redacted]"}'),
    (f"glsa_{'a1' * 16}_0123abcd", "[redacted]"),
    # --- addresses that are a secret
    (
        "https://hooks.slack.com/services/T0/B0/hunter2xyz",
        "https://hooks.slack.com/services/[redacted]",
    ),
    (
        "https://hooks.slack.com/workflows/T0/A0/12/hunter2",
        "https://hooks.slack.com/workflows/[redacted]",
    ),
    (
        "https://discord.com/api/webhooks/12/hunter2-x_y now",
        "https://discord.com/api/webhooks/[redacted] now",
    ),
    (
        "discordapp.com/api/v10/webhooks/12/hunter2?wait=1",
        "discordapp.com/api/v10/webhooks/[redacted]?wait=1",
    ),
    (
        "https://api.telegram.org/bot12:hunter2/sendMessage",
        "https://api.telegram.org/bot[redacted]/sendMessage",
    ),
    (
        "https://api.telegram.org/file/bot12:hunter2/x",
        "https://api.telegram.org/file/bot[redacted]/x",
    ),
    (
        "https://o.webhook.office.com/webhookb2/hunter2@x/y/z",
        "https://o.webhook.office.com/webhookb2/[redacted]",
    ),
    (
        "https://outlook.office.com/webhook/hunter2/I/x",
        "https://outlook.office.com/webhook/[redacted]",
    ),
    (
        "https://p.logic.azure.com/w/x?api=1&sig=hunter2&a=b",
        "https://p.logic.azure.com/w/x?api=1&sig=[redacted]&a=b",
    ),
    (
        "https://a.blob.core.windows.net/c?sv=1&sig=hunter2",
        "https://a.blob.core.windows.net/c?sv=1&sig=[redacted]",
    ),
    (
        "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=hunter2",
        "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=[redacted]",
    ),
    (
        "https://open.feishu.cn/open-apis/bot/v2/hook/hunter2",
        "https://open.feishu.cn/open-apis/bot/v2/hook/[redacted]",
    ),
    (
        "https://hooks.zapier.com/hooks/catch/1/hunter2/",
        "https://hooks.zapier.com/hooks/catch/[redacted]",
    ),
    (
        "https://maker.ifttt.com/trigger/e/with/key/hunter2",
        "https://maker.ifttt.com/trigger/e/with/key/[redacted]",
    ),
    # --- names in other spellings
    ("q=password%3Dhunter2&x=y", "q=password%3D[redacted]&x=y"),
    (r"{\\\"password\\\":\\\"hunter2\\\"}", r"{\\\"password\\\":\\\"[redacted]\\\"}"),
    (
        "DefaultEndpointsProtocol=https;AccountKey=hunter2==;",
        "DefaultEndpointsProtocol=https;AccountKey=[redacted];",
    ),
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
mkdir -pv build/a
mkdir -p build/a
ssh -p 22 host
ssh -p22 host
scp -P 22 a host:b
docker run -p 80:80 image
docker run -d -p 127.0.0.1:8080:80 --name login nginx
docker compose -p project up
podman run -p80:80 image
cp -p a b
cp -pr a b
ps -p 12
netstat -pant
lsof -p 12
tar -pxf a.tar
mysql -p
mysql -u root -p db
mysql -uroot -P 3306 -h db
mysql -p"$PASSWORD" db
mysql -p$MYSQL_PWD db
mysql -p${MYSQL_PWD} db
mysqldump --single-transaction -p db
vault login -method=oidc role=dev
cargo login
vault read secret/x
set -x; echo hi
set -e PASSWORD_FILE x
setenv PATH /bin
the column is identified by "id"
password (optional)
{"auth": "required"}
sqlplus /nolog
sudo -S ls <<EOF
snmpwalk -v2 h
ln -s a;pwd=$(pwd)
useradd -m bob
mysql: command not found
pip install mysql-python -p x
sshpass -e ssh host
sshpass -f file ssh host
sshpass -e ssh -p 22 host
npm config get registry
npm config set registry https://r.example
npm config: the token is missing
aws configure get aws_access_key_id --profile x
poetry config virtualenvs.create false
twine check -p x
skopeo copy docker://a docker://b
xfreerdp /v:h /port:1
sshpass -f file ssh -p 22 host
sshpass -p "$SSHPASS" ssh host
docker login --password-stdin registry.example
docker login -u bob registry.example
npm login
openssl x509 -in cert.pem -noout -text
openssl enc -pass stdin
openssl enc -pass env:KEY
openssl enc -pass file:key
openssl req -new -key key.pem -keyout out.pem
redis-cli -h host -p 6379 ping
redis-cli -a "$REDIS" ping
mongosh -p
mongosh --port 27017 db
ldapsearch -x -W -D cn=admin
ldapsearch -y file -b dc=example
zip -r out.zip src
unzip -p a.zip file
7z x archive.7z -oout
gpg --pinentry-mode loopback
ssh-keygen -t ed25519 -N '' -f key
net use
net user
net start service
curl -b cookies.txt https://host
curl -s -o out https://host
wget -p https://host
echo hello | sudo tee file
echo hello | docker build -
echo pass:fail | grep x
psql -p 5432 -U bob
python -p x
git log -p -2
rsync -avp a b
https://hooks.slack.com/
https://discord.com/channels/12/34
https://api.telegram.org/
https://core.telegram.org/bots/api
https://example.com/webhooks/deploy
?sig=
design=blue
config=prod
"a" + "b"
x = "a" + "b"
echo "a"'b'
12345678:hello
1700000000:AAA
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
    lambda secret: secret.encode().hex(),
    lambda secret: secret.encode().hex().upper(),
    lambda secret: secret.encode().hex(" "),
    lambda secret: secret.encode().hex(":"),
    lambda secret: secret.encode().hex(" ", 2),
    lambda secret: "".join(f"\\x{byte:02x}" for byte in secret.encode()),
    lambda secret: ", ".join(f"0x{byte:02x}" for byte in secret.encode()),
    lambda secret: re.sub("(.{12})", r"\1\n", secret.encode().hex()),
    lambda secret: "\n".join(re.findall(".{1,5}", base64.b64encode(secret.encode()).decode())),
    lambda secret: "\r\n  ".join(
        re.findall(".{1,7}", base64.b64encode(f"u:{secret}".encode()).decode())
    ),
    lambda secret: r"\n".join(
        re.findall(".{1,6}", base64.b64encode(f"us:{secret}".encode()).decode())
    ),
    lambda secret: "\n".join(re.findall(".{1,8}", secret)),
    lambda secret: f"{secret[:4]}\x1b[31m{secret[4:]}",
    lambda secret: "\x1b[0;1m".join(secret),
    lambda secret: "\x1b[0m\x1b[38;5;12m\x1b[K".join(secret),
    lambda secret: f"{secret[:4]}\\u001b[31m{secret[4:]}",
    lambda secret: f"{secret[:4]}\\033[1m{secret[4:]}",
    lambda secret: f"{secret[:4]}\x1b]8;;http://x\x07{secret[4:]}\x1b]8;;\x1b\\",
    lambda secret: f"{secret[:4]}\u200b{secret[4:]}",
    lambda secret: (
        f"{secret[:4]}\x1b[1m{secret[4:]}".encode().hex()[:8]
        + "\x1b[0m"
        + secret.encode().hex()[8:]
    ),
]


@pytest.mark.parametrize("form", FORMS)
def test_a_known_secret_is_redacted_in_every_form(form: Callable[[str], str]) -> None:
    secret = 'p@ss "w/rd>+?~'
    text = f"before {form(secret)} after"
    redacted = redact(text, [secret])
    assert redacted.startswith("before ")
    assert redacted.endswith(" after")
    assert REDACTED in redacted
    assert len(redacted) <= len("before [redacted] after") + 12


def test_a_single_secret_may_be_given_as_it_is() -> None:
    assert redact("say abracadabra twice", "abracadabra") == "say [redacted] twice"


def test_empty_secrets_are_not_secrets() -> None:
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
    *(
        "mysql -p",
        "vault login ",
        "cargo login a ",
        "sudo -S ",
        "identified by ",
        "password(",
        "set -x ",
        ";pwd=",
        "sqlplus a/",
        "sshpass -p ",
        "docker login -p ",
        "openssl -pass pass:",
        "net use \\\\a ",
        "?sig=",
    ),
    *(
        "echo ",
        " | sudo -S",
        "api.telegram.org/bot1:",
        "hooks.slack.com/services/",
        "\x1b[0m",
        " + ",
    ),
    *("curl -b ", "68756e74657232", "aHVudGVyMg", "TOKEN=", "-k ", "*", "'a'", '"b"'),
]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join))


@given(text=TEXTS, secrets=st.lists(st.text(max_size=12), max_size=3))
def test_redacting_twice_changes_nothing_more_and_never_raises(
    text: str, secrets: list[str]
) -> None:
    once = redact(text, secrets)
    assert redact(once, secrets) == once


@given(before=TEXTS, after=TEXTS, secret=st.text(min_size=4, max_size=20))
def test_a_known_secret_never_remains(before: str, after: str, secret: str) -> None:
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
    *("h\x1b[0m", "\x1b]", "\x1b[", "68\n", "h\nu", "0x68,", "mysql -p", "mysql", "sshpass -p a "),
    *(
        "TOKEN=a'",
        "TOKEN='a'\"",
        "echo a ",
        "echo a | ",
        "12345678:A",
        "https://api.telegram.org/bot",
    ),
    *(
        "net use a ",
        "openssl -pass pass:",
        "mysql \\\n",
        "password%3D",
        "hunter\x1b[m2",
        "hunter\n2",
    ),
    *("docker a login ", "htpasswd -b a ", "sig=", "discord.com/api/v1"),
]
CPU_LIMIT_S = 10
SIZE = 2**17
READ_AND_REDACT = f"""
import json, resource, sys, time
from kakoi._support.redact import redact
for piece in json.load(sys.stdin):
    print(repr(piece), flush=True)
    limit = int(time.process_time()) + {CPU_LIMIT_S}
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
    redact((piece * {SIZE})[:{SIZE}], ["hunter2", "a" * 20 + "hunter2"])
"""


@pytest.mark.slow("reads some mebibytes")
def test_texts_made_to_be_slow_are_not() -> None:
    """Work that grows with the square of the text would be ended by the limit of its processor time."""
    source = Path(redact_module.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", READ_AND_REDACT],
        input=json.dumps(HOSTILE),
        env={"PYTHONPATH": str(source)},
        timeout=600,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, repr(HOSTILE[-1])), done.stderr
