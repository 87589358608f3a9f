"""The settings in the words of JSON Schema, for editors: what may be written in which place."""

from collections.abc import Mapping
from typing import Any, Final

from kakoi.config.settings import defaults, section_docs, table

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema(*, project: bool = False) -> dict[str, Any]:
    """A schema for the user's file, or for what the file of a `project` may set.

    It knows the names that kakoi writes. What it reads besides (camelCase, the sections of the
    specs' own files) is meant for files that exist already.
    """
    schema: dict[str, Any] = {
        "$schema": DIALECT,
        "title": "Settings of kakoi" + (" for a project" if project else ""),
        **_section("Everything that can be set, by the names that kakoi writes."),
    }
    for path, setting in table().items():
        if project and setting.project == "nothing":
            continue
        *sections, name = path.split(".")
        place = schema
        for depth, section in enumerate(sections, 1):
            doc = section_docs()[".".join(sections[:depth])]
            place = place["properties"].setdefault(section, _section(doc))
        place["properties"][name] = _value(path, setting.doc, setting.kind.schema)
    return schema


def _section(doc: str) -> dict[str, Any]:
    """A section; in YAML one without any keys is null."""
    return {
        "description": doc,
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {},
    }


def _value(path: str, doc: str, kind: Mapping[str, Any]) -> dict[str, Any]:
    default = defaults()[path]
    # What is nothing inside is the word `none` in a file.
    plain = "none" if default is None else list(default) if isinstance(default, tuple) else default
    return {"description": doc, "default": plain, **kind}
