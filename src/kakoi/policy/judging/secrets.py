"""Where credentials are, and which folders are private: from the text of a path alone."""

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.judging.paths import SCRATCH, absolute, within
from kakoi.policy.parsing.words import Expands, Expansion, Literal, Word

# Letter case does not matter: on some systems `~/.SSH` is `~/.ssh`.
_SECRET: Final = pattern(
    # Keys and tokens by their usual place, in anybody's home.
    r"(?:^|/)(?:\.ssh|\.gnupg|\.aws|\.azure|\.kube|\.minikube|\.oci|\.aliyun|\.bluemix|\.password-store|\.pki|\.electrum"
    r"|\.fly|\.ngrok2|\.supabase|\.mozilla|\.thunderbird|\.openai|\.anthropic|\.subversion/auth|\.snowsql|\.ethereum"
    r"|\.config/(?:gcloud|gh|glab-cli|op|hub|rclone|git/credentials|doctl|heroku|stripe|hcloud|sops|age|ngrok|configstore"
    r"|github-copilot|opencode|openai|anthropic|google-chrome[\w-]*|chromium|BraveSoftware|microsoft-edge[\w-]*|vivaldi|opera"
    r"|Bitwarden|1Password|keepassxc|Slack|discord|Signal|containers/auth\.json|composer/auth\.json|pip/pip\.conf"
    r"|linode-cli|scw|flyctl|netlify|vercel|wrangler|\.wrangler|gcm|transifex|hatch|pypoetry/auth\.toml)"
    r"|\.local/share/(?:keyrings|opencode/auth\.json|com\.vercel\.cli|containers/auth|fish/fish_history|pypoetry/auth\.toml)"
    r"|\.cache/(?:mozilla|google-chrome|chromium|BraveSoftware)"
    r"|Library/(?:Keychains|Cookies|Messages|Mail|Safari)"
    r"|Library/Application Support/(?:Google/Chrome|Firefox|BraveSoftware|Microsoft Edge|Chromium)"
    r")(?:/|$)"
    r"|(?:^|/)\.(?:netrc|git-credentials|pgpass|my\.cnf|mylogin\.cnf|pypirc|vault-token|dockercfg|s3cfg|boto"
    r"|rhosts"
    r"|authinfo(?:\.gpg)?|passwd-s3fs|databrickscfg|sentryclirc|vault_pass\w*|claude\.json|terraformrc|wakatime\.cfg"
    r"|Xauthority|ICEauthority|htpasswd|wget-hsts|lesshst|viminfo|fetchmailrc|msmtprc|mbsyncrc|hgrc"
    r"|(?:bash|zsh|sh|ash|python|node_repl|psql|mysql|sqlite|irb|rediscli|mongo|dbshell|R|lua|php)_?history|histfile|history)$"
    r"|(?:^|/)\.docker/(?:config\.json|contexts)(?:/|$)|(?:^|/)\.?_?netrc$"
    r"|(?:^|/)id_(?:rsa|ed25519|ecdsa|dsa)(?:_sk)?$|(?:^|/)known_hosts$"
    r"|(?:^|/)\.(?:terraform\.d/credentials|claude/(?:\.credentials|history|projects|sessions)|codex/(?:auth|history|sessions)"
    r"|gemini/(?:oauth|google_accounts|tmp)|cursor/(?:mcp|auth)|aider\.conf|continue/config|kagura/|huggingface/token"
    r"|(?:cache/)?huggingface/(?:token|stored_tokens)|kaggle/kaggle\.json|pulumi/credentials|circleci/cli|mc/config\.json"
    r"|sbt/\.credentials|ivy2/\.credentials|composer/auth|bundle/config|gem/credentials|cargo/credentials|m2/settings"
    r"|gradle/gradle\.properties|jupyter/jupyter_\w*config|wallet)"
    r"|^(?:/home/[^/]+|/root|/Users/[^/]+)/(?:\.npmrc|\.yarnrc(?:\.yml)?|\.bunfig\.toml|\.pip/pip\.conf|\.env(?:\.[\w.-]+)?|\.ansible/\w*token)$"
    r"|(?:^|/)(?:cookies|logins|key[34])\.(?:sqlite|db|json)$|(?:^|/)wallet\.dat$|(?:^|/)login\.keychain"
    # Accounts and keys of the system, and the memory of processes.
    r"|^(?:/private)?/etc/(?:shadow|gshadow|sudoers|passwd|master\.passwd|ssh|krb5\.keytab)[^/]*(?:$|/)"
    r"|^/etc/(?:kubernetes/[^/]*\.conf|ssl/private|pki/tls/private|rancher|wireguard|openvpn|letsencrypt|ipsec\.secrets"
    r"|NetworkManager/system-connections|security/opasswd|mysql/debian\.cnf|ppp/(?:chap|pap)-secrets|docker/key\.json"
    r"|crypttab|netplan|wpa_supplicant(?:\.conf)?|apt/auth\.conf[^/]*|rclone\.conf|samba/private|postfix/sasl_passwd[^/]*)(?:$|/)"
    r"|docker\.sock$|containerd\.sock$|crio\.sock$"
    r"|^/proc/(?:[^/]+/(?:task/[^/]+/)?(?:environ|mem|maps|smaps|fd|root|cwd|cmdline|auxv|map_files)|kcore|kmem)(?:/|$)"
    r"|^/(?:run|var/run)/(?:secrets|user|credentials|docker)|^/dev/(?:mem|kmem|port|sd|nvme|vd|xvd|hd|disk|mapper|loop|dm-)"
    r"|^/var/(?:backups|mail|spool/(?:mail|cron|at)|lib/(?:docker|kubelet|containerd|sss|NetworkManager|rancher|etcd|private|gdm3?"
    r"|cloud/instances?|samba/private|postgresql|mysql))(?:/|$)",
    re.IGNORECASE,
)
# What a glob or a folder can stand for: `cat /etc/shado?`, `grep -r KEY /etc`.
_KNOWN_SECRETS: Final = tuple(
    tuple(path.split("/"))
    for path in (
        "/etc/shadow /etc/passwd /etc/sudoers /etc/gshadow /etc/ssh/ssh_host_rsa_key "
        "/home/*/.ssh/id_rsa /home/*/.ssh/id_ed25519 /home/*/.aws/credentials /home/*/.netrc "
        "/home/*/.git-credentials /home/*/.npmrc /home/*/.bash_history "
        "/home/*/.config/gh/hosts.yml /etc/ssl/private/x "
        "/home/*/.config/gcloud/credentials.db /home/*/.docker/config.json /home/*/.kube/config "
        "/home/*/.claude/.credentials.json /home/*/.local/share/keyrings/login.keyring "
        "/proc/*/environ /proc/*/maps /proc/self/environ /proc/self/maps "
        "/root/.ssh/id_rsa /root/.aws/credentials /root/.netrc /root/.config/gh/hosts.yml "
        "/Users/*/.ssh/id_rsa /Users/*/.aws/credentials /var/lib/docker/x /run/secrets/x"
    ).split()
)
_LONGEST_PATH: Final = 4096
_STAND_IN: Final = "\0"
_HOME: Final = r"(?:/home/[^/]+|/root|/Users/[^/]+)"
# Folders that everybody may read: the system's, and those in which containers keep their work.
_PUBLIC: Final = pattern(
    r"/?$|/(?:usr|bin|sbin|lib\w*|opt|etc|proc|sys|dev|tmp|nix|gnu|snap|Library|System|Applications|private/(?:tmp|etc)"
    r"|var/(?:tmp|log|cache|lib|folders)|workspaces?|testbed|app|repo|code|src|build|work|projects?|tests|logs)(?:/|$)"
)
# What package managers and toolchains keep below a home: programs, packages and caches.
_PUBLIC_AT_HOME: Final = pattern(
    rf"{_HOME}/(?:\.gitconfig|\.cache|\.cargo/(?:registry|git|bin)|\.rustup|go|\.npm|\.nvm|\.yarn|\.bun|\.deno|\.volta|\.pyenv|\.rbenv"
    r"|\.local/(?:bin|lib|pipx|share/(?:uv|pnpm|mise|man|virtualenvs|gem))|\.m2/repository|\.gradle/(?:caches|wrapper|daemon)"
    r"|\.conda|(?:mini|ana)conda3|miniforge3|\.julia|\.opam|\.stack|\.cabal|\.sdkman|\.dotnet|\.nuget/packages|\.ivy2/cache"
    r"|\.pub-cache|\.hex|\.mix|\.elan|\.ghcup|\.juliaup|\.pixi|\.poetry|\.gem/ruby|\.bundle/cache|\.npm-global)(?:/|$)"
)
# Folders of persons and services, also where a word only may be a path.
_PRIVATE: Final = pattern(
    rf"{_HOME}(?:/|$)|/home(?:/|$)|/Users(?:/|$)|/(?:mnt|media|srv|Volumes|lost\+found)(?:/|$)"
    r"|/var/(?:www|spool|mail|backups)(?:/|$)"
)


def is_secret(word: Word, cwd: str | None) -> bool:
    """Whether reading `word` would reveal a credential or another process's memory."""
    path = _path(word, cwd)
    if path is None:
        return False
    if word.glob and _may_stand_for_secret(path):
        return True
    return _names_secret(path) or _begins_secret(path)


@lru_cache(maxsize=1024)
def _names_secret(path: str) -> bool:
    return _SECRET.search(path.replace(_STAND_IN, "x")) is not None


def holds_secrets(word: Word, cwd: str | None) -> bool:
    """Whether a credential can be below the folder `word`, for programs that read whole trees."""
    path = _path(word, cwd)
    if path is None or (cwd is None and not path.startswith("/")):
        return False
    return _holds_secrets(path)


@lru_cache(maxsize=1024)
def _holds_secrets(path: str) -> bool:
    pieces = [] if path == "/" else path.split("/")[1:]
    return any(
        len(secret) - 1 > len(pieces)
        and all(
            _STAND_IN in piece or fnmatchcase(known, piece) or fnmatchcase(piece, known)
            for known, piece in zip(secret[1:], pieces, strict=False)
        )
        for secret in _KNOWN_SECRETS
    )


def is_private(word: Word, cwd: str | None, roots: tuple[str, ...], *, surely_path: bool) -> bool:
    """Whether reading `word` leads out of the workspace and of the folders that are for everybody.

    `surely_path`: it is a path and not only a word that looks like one.
    """
    if word.text and word.text[0] not in "/~." and ".." not in word.text and cwd in roots:
        return False
    path = _path(word, cwd)
    if path is None or (cwd is None and path.startswith("/nowhere")):
        return False
    path, stand_in, _ = path.partition(_STAND_IN)
    if any(within(path, root) for root in (*roots, *SCRATCH)):
        return False
    if _PUBLIC_AT_HOME.match(path):
        return False
    if not surely_path:
        return bool(_PRIVATE.match(path))
    # `/$x`: the name of the first folder is unknown.
    unknown = bool(stand_in) and "/" not in path[1:]
    return bool(_PRIVATE.match(path)) or not (unknown or _PUBLIC.match(path))


def _path(word: Word, cwd: str | None) -> str | None:
    """Return the path that a word names, with a stand-in for what is not known; else None."""
    known = word.shape if word.shape is not None else _with_stand_ins(word)
    if not known or len(known) > _LONGEST_PATH or known.startswith(_STAND_IN):
        return None
    if word.tilde or known.startswith("~"):
        known = re.sub(r"^~[^/]*", "/home/user", known)
    elif known.startswith("$HOME"):
        known = "/home/user" + known[5:]
    # The directory of descriptors is a link, so `..` in it is the directory of the process.
    known = re.sub(r"^/+dev/+fd(?=/)", "/proc/self/fd", known)
    # So are these: `/proc/self/cwd/../../etc/shadow`.
    known = re.sub(
        r"^/+proc/+[^/]+/+(cwd|root|fd/+\w+)(?=/.*\.\.)", r"/proc/self/\1/x/x/x/x/x/x", known
    )
    return absolute(known, cwd or "/nowhere")


def _with_stand_ins(word: Word) -> str:
    """Return the text of a word, with a stand-in for each part that is known only at run time."""
    if not word.prefix and not any(type(part) is Literal for part in word.parts):
        return "$HOME" if len(word.parts) == 1 and _is_home(word.parts[0]) else ""
    return "".join(
        part.text
        if isinstance(part, Literal)
        else (part.name if part.kind is Expands.SHAPE else "$HOME" if _is_home(part) else _STAND_IN)
        for part in word.parts
    )


def _is_home(part: object) -> bool:
    return isinstance(part, Expansion) and part.name == "HOME" and not part.operator


def _may_stand_for_secret(path: str) -> bool:
    pieces = path.split("/")
    return any(
        len(secret) == len(pieces)
        and all(
            known == "*" or fnmatchcase(known, piece)
            for known, piece in zip(secret, pieces, strict=True)
        )
        for secret in _KNOWN_SECRETS
    )


def _begins_secret(path: str) -> bool:
    """`/etc/sha…`: the known part of the last name is the beginning of a secret's name."""
    begun, stand_in, rest = path.partition(_STAND_IN)
    folder, _, name = begun.rpartition("/")
    return bool(stand_in and name and not rest) and any(
        "/".join(secret[:-1]) == folder and secret[-1].startswith(name) for secret in _KNOWN_SECRETS
    )
