"""Package names: valid ones, and strings that must never be accepted as one."""

from typing import Final

from hypothesis import strategies as st

from kakoi.packages.allowlist import Ecosystem

LISTS: Final[dict[Ecosystem, str]] = {
    "apt": "curl=*\ngit\njq=1.6-2.1\nlibstdc++6\n",
    "pip": "requests\nFlask_Login==0.6.3\npytest==*\nzope.interface\n",
    "npm": "typescript@*\n@types/node@20\neslint\nJSONStream\n@scope/pkg@*\n",
}

# Per ecosystem: a request that the lists above allow, and the argument for the package manager.
ALLOWED: Final[list[tuple[Ecosystem, str, str]]] = [
    ("apt", "curl", "curl"),
    ("apt", "curl=7.88.1-10+deb12u8", "curl=7.88.1-10+deb12u8"),
    ("apt", "jq", "jq=1.6-2.1"),
    ("apt", "jq=1.6-2.1", "jq=1.6-2.1"),
    ("apt", "libstdc++6", "libstdc++6"),
    ("pip", "requests", "requests"),
    ("pip", "Requests", "Requests"),
    ("pip", "requests[socks]", "requests[socks]"),
    ("pip", "requests[socks,use-chardet-on-py3]", "requests[socks,use-chardet-on-py3]"),
    ("pip", "pytest", "pytest"),
    ("pip", "pytest==8.3", "pytest==8.3"),
    ("pip", "PyTest[dev,extra]>=2,<3", "PyTest[dev,extra]>=2,<3"),
    ("pip", "pytest~=8.3.0", "pytest~=8.3.0"),
    ("pip", "pytest==8.*", "pytest==8.*"),
    ("pip", "flask-login", "flask-login==0.6.3"),
    ("pip", "FLASK.login==0.6.3", "FLASK.login==0.6.3"),
    ("pip", "zope-interface", "zope-interface"),
    ("pip", "zope__interface", "zope__interface"),
    ("npm", "typescript", "typescript"),
    ("npm", "typescript@5.4.5", "typescript@5.4.5"),
    ("npm", "typescript@^5", "typescript@^5"),
    ("npm", "typescript@>=5", "typescript@>=5"),
    ("npm", "typescript@latest", "typescript@latest"),
    ("npm", "typescript@next-14.0.0-beta.1+x", "typescript@next-14.0.0-beta.1+x"),
    ("npm", "@types/node", "@types/node@20"),
    ("npm", "@types/node@20", "@types/node@20"),
    ("npm", "@scope/pkg@1.x", "@scope/pkg@1.x"),
    ("npm", "JSONStream", "JSONStream"),
]

# Requests for another package, for another version, or for something that is not a package.
REFUSED: Final[list[tuple[Ecosystem, str]]] = [
    *(
        ("pip", name)
        for name in ("", " ", ".*", "reques.s", "request", "requestss", "requests ", " requests")
    ),
    *(
        ("pip", name)
        for name in ("--index-url=x", "-i", "-r", "-rrequirements.txt", "-e.", "--", "-")
    ),
    *(
        ("pip", name)
        for name in ("../x", "./requests", "/requests", "requests/", ".", "..", "~/requests")
    ),
    *(
        ("pip", name)
        for name in (
            "requests\nevil",
            "requests\n",
            "\nrequests",
            "requests\r",
            "requests\t",
            "requests\x00",
        )
    ),
    *(
        ("pip", name)
        for name in ("requests evil", "requests --index-url x", "requests;evil", "requests,evil")
    ),
    *(
        ("pip", name)
        for name in (
            "requests; python_version > '3'",
            "requests;python_version>'3'",
            "requests@evil",
        )
    ),
    *(
        ("pip", name)
        for name in ("requests @ https://example.org/x.whl", "requests@https://example.org/x")
    ),
    *(
        ("pip", name)
        for name in (
            "git+https://example.org/requests",
            "https://example.org/requests",
            "file:requests",
        )
    ),
    *(
        ("pip", name)
        for name in (
            "requests==1.zip",
            "requests.whl",
            "requests==2.tar.gz",
            "requests.TGZ",
            "requests>1.EGG",
        )
    ),
    *(
        ("pip", name)
        for name in (
            "requests==",
            "requests=2",
            "requests==2 ",
            "requests==2,",
            "requests[",
            "requests[]",
            "requests[a]b",
            "requests[a",
        )
    ),
    *(
        ("pip", name)
        for name in (
            "requests=>2",
            "requests==-2",
            "requests== 2",
            "requests==2,==",
            "requests==2,evil",
            "requests[--x]",
        )
    ),
    *(
        ("pip", name)
        for name in (
            "ｒequests",
            "rеquests",
            "requests\u200b",
            "réquests",
            "requests\u00a0",
            "ſ",
            "requestſ",
            "\u212aequests",
        )
    ),
    *(
        ("pip", name)
        for name in (
            "requests$(id)",
            "requests`id`",
            "requests|x",
            "requests>x>",
            "requests'",
            'requests"',
            "requests\\",
            "$HOME",
            "\\requests",
        )
    ),
    # A version only in the form that the list gives.
    *(
        ("pip", name)
        for name in (
            "requests==0",
            "requests==2.32",
            "requests>=2",
            "requests[socks]~=2.32.0",
            "requests==*",
            "zope.interface==5.0",
        )
    ),
    *(("npm", name) for name in ("eslint@9", "eslint@latest", "eslint@*", "JSONStream@1.x")),
    *(("apt", name) for name in ("git=1:2.39.2-1", "libstdc++6=12", "git=*", "curl=*")),
    *(
        ("pip", name)
        for name in (
            "flask-login==0.6.4",
            "flask-login>=0.6.3",
            "flask-login===0.6.3",
            "flask-login==0.6.3,<9",
            "flask-login==0.6",
            "x" * 257,
        )
    ),
    *(
        ("pip", name)
        for name in (
            "typescript",
            "curl",
            "#",
            "# requests",
            "*",
            "requests*",
            "[socks]",
            "==2",
            "requests-",
            "-requests",
            "_requests",
        )
    ),
    *(
        ("npm", name)
        for name in (
            "requests",
            "curl",
            "Typescript",
            "TYPESCRIPT",
            "jsonstream",
            "types/node",
            "@types/nodes",
            "@types",
            "@types/",
            "@/node",
        )
    ),
    *(
        ("npm", name)
        for name in (
            "@types/node@21",
            "@types/node@^20",
            "@types/node@20.0.0",
            "@Types/node",
            "@types/node/x",
            "@types//node",
            "@types/node@20@20",
        )
    ),
    *(
        ("npm", name)
        for name in (
            "typescript@npm:evil",
            "typescript@file:../x",
            "typescript@github:a/b",
            "typescript@git+ssh://x",
            "typescript@https://x/y",
        )
    ),
    *(
        ("npm", name)
        for name in (
            "typescript@.",
            "typescript@..",
            "typescript@./x",
            "typescript@/x",
            "typescript@~/x",
            "typescript@",
            "typescript@@",
            "typescript@a/b",
        )
    ),
    *(
        ("npm", name)
        for name in (
            "evil@npm:typescript",
            "typescript/evil",
            "evil/typescript",
            "./typescript",
            "typescript.tgz",
            "typescript@1.tgz",
            "typescript@1.0.0-a.TAR",
        )
    ),
    *(
        ("npm", name)
        for name in (
            "-g",
            "--registry=http://x",
            "--global",
            "--prefix=/",
            "typescript@>=1 <2",
            "typescript@1 || 2",
            "typescript@workspace:*",
            "typescript\nevil",
        )
    ),
    *(
        ("apt", name)
        for name in (
            "requests",
            "Curl",
            "curl-",
            "curl+",
            "curl:amd64",
            "curl/testing",
            "curl=",
            "curl=1 ",
            "curl==1",
            "curl^",
            "c*",
            "cur.",
            "curl=../x",
        )
    ),
    *(
        ("apt", name)
        for name in (
            "./curl.deb",
            "/tmp/curl.deb",
            "-o=x",
            "-t",
            "--reinstall",
            "curl;id",
            "curl\n",
            "jq=1.7",
            "jq=1.6-2.1.1",
            "jq-",
            "libstdc++",
            "c",
        )
    ),
]

ECOSYSTEM: Final = st.sampled_from(["apt", "pip", "npm"])
# Characters with a meaning for a shell, a pattern, a package manager, a terminal or JSON.
_ODD: Final = "-._~^*=<>!,:;@/[](){}|&$`'\"\\#%?+ \t\n\r\x01\x1b\x7fé｜ｒеſ\u200b\u2028😀"
_LISTED: Final = "requests flask-login Flask_Login typescript @types/node curl jq libstdc++6 zope.interface".split()


@st.composite
def nearly_listed(draw: st.DrawFn) -> str:
    """A listed name with a few characters added, removed or replaced."""
    name = draw(st.sampled_from(_LISTED))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(name)))
        kept = draw(st.integers(place, min(len(name), place + 2)))
        piece = draw(st.text(st.sampled_from(_ODD + "aAsS012x"), max_size=4))
        name = name[:place] + piece + name[kept:]
    return name


HOSTILE: Final = st.one_of(
    nearly_listed(),
    st.text(st.sampled_from(_ODD + "aA1"), max_size=12),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    st.sampled_from([name for _, name in REFUSED if "\0" not in name]),
    st.sampled_from([name for _, name, _ in ALLOWED]),
)

# Names as their registries allow them, except those that look like a file.
_ARCHIVE: Final = r"(?i)\.(zip|whl|egg|tar|tgz|tbz|txz|tlz|gz|bz2|xz|lz|lzma)$"
NAMES: Final[dict[Ecosystem, st.SearchStrategy[str]]] = {
    "apt": st.from_regex(r"[a-z0-9][a-z0-9+.-]{1,12}", fullmatch=True),
    "pip": st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,10}[A-Za-z0-9])?", fullmatch=True),
    "npm": st.from_regex(r"(@[a-z0-9][a-z0-9._-]{0,6}/)?[a-z0-9][a-z0-9._-]{0,10}", fullmatch=True),
}
