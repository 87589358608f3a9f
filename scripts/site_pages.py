"""A mkdocs hook that adds the pages in the root of the repository and adjusts links to them.

On disk `docs/explanation/x.md` links to `../../SECURITY.md`; in the site that page is
`project/SECURITY.md`. Links to anything else (a script, a folder) become plain text in the site.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TOP = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Append every how-to that the menu does not list, so that none is missing."""
    (how_to,) = (entry["How to"] for entry in config.nav or () if "How to" in entry)
    named = {page for entry in how_to for page in entry.values()}
    written = (f"how-to/{path.name}" for path in sorted((DOCS / "how-to").glob("*.md")))
    how_to += [page for page in written if page not in named]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in TOP:
        files.append(File.generated(config, f"project/{name}", abs_src_path=str(ROOT / name)))
    # The list of decisions keeps growing, so its index is generated here.
    lines = [
        "# Decisions",
        "",
        "One page each: context, decision, consequences, what would change our mind.",
        "",
    ]
    for path in sorted((DOCS / "adr").glob("*.md")):
        title = path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title.replace('. ', ' · ', 1)}]({path.name})")
    files.append(File.generated(config, "adr/index.md", content="\n".join(lines) + "\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    on_disk = ROOT / uri.removeprefix("project/") if uri.startswith("project/") else DOCS / uri

    def site_link(match: re.Match[str]) -> str:
        text, target = match.groups()
        path, mark, anchor = target.partition("#")
        if not path or re.match(r"\w+:", target):
            return match[0]
        aim = Path(os.path.normpath(on_disk.parent / path))
        found = f"project/{aim.name}" if aim.parent == ROOT else os.path.relpath(aim, DOCS)
        found = "index.md" if aim == ROOT / "README.md" else found
        if files.get_file_from_path(found) is None and not found.endswith(".md"):
            return text
        return f"[{text}]({os.path.relpath(found, os.path.dirname(uri))}{mark}{anchor})"

    parts, start = [], 0
    for code in CODE.finditer(markdown):
        # The text of a link can be code. Do not split the link there.
        if markdown[: code.start()].endswith("[") and markdown[code.end() :].startswith("]("):
            continue
        parts += [LINK.sub(site_link, markdown[start : code.start()]), code[0]]
        start = code.end()
    return "".join([*parts, LINK.sub(site_link, markdown[start:])])
