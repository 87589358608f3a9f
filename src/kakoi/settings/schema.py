"""The JSON Schema of the settings, for editors."""

from typing import Any, Final

from kakoi._support.fields import Setting
from kakoi.settings.model import defaults, section_docs, settings_table

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema(*, project: bool = False) -> dict[str, Any]:
    """Return the schema of the user's file, or of what a `project`'s file can set.

    It contains only the names that kakoi writes. The other spellings that kakoi reads (camelCase,
    sections of other programs' files) are for existing files.
    """
    schema: dict[str, Any] = {
        "$schema": DIALECT,
        "title": "kakoi settings" + (" for a project" if project else ""),
        **_section("All settings, by the names that kakoi writes."),
    }
    for path, setting in settings_table().items():
        if project and setting.project == "nothing":
            continue
        *sections, name = path.split(".")
        place = schema
        for depth, section in enumerate(sections, 1):
            doc = section_docs()[".".join(sections[:depth])]
            place = place["properties"].setdefault(section, _section(doc))
        place["properties"][name] = _value(path, setting)
    return schema


def _section(doc: str) -> dict[str, Any]:
    """Return the schema of a section; in YAML a section without keys is null."""
    return {
        "description": doc,
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {},
    }


def _value(path: str, setting: Setting) -> dict[str, Any]:
    default = setting.kind.written(defaults()[path])
    plain = list(default) if isinstance(default, tuple) else default
    return {"description": setting.doc, "default": plain, **setting.kind.schema}
