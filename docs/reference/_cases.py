"""Print the tables of docs/reference/cases.md, or with --schema the JSON Schema of case files."""

import inspect
import json
import sys

import msgspec

from attnfuzz.reference.case_file import FORMAT, VERSION
from attnfuzz.reference.case_types import OWN, tag_of


def schema():
    """Return the JSON Schema of a case file of any type that ships with attnfuzz."""
    roots, definitions = msgspec.json.schema_components(OWN, ref_template="#/$defs/{name}")
    for kind in OWN:
        fields = definitions[kind.__name__]
        fields["properties"] = {
            "format": {"const": FORMAT},
            "version": {"const": VERSION},
            **fields["properties"],
            "kind": {"const": tag_of(kind)},
        }
        fields["required"] = ["format", "version", *fields["required"]]
    for definition in definitions.values():
        if "description" in definition:
            # msgspec does so since 0.23.
            definition["description"] = inspect.cleandoc(definition["description"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "anyOf": list(roots),
        "$defs": dict(sorted(definitions.items())),
    }


def text() -> str:
    """Return the content of docs/reference/case-schema.json."""
    return json.dumps(schema(), indent=1) + "\n"


def page() -> str:
    """Return a section for each type of cases, and one for each type of their fields."""
    definitions = schema()["$defs"]
    names = dict.fromkeys((*(kind.__name__ for kind in OWN), *definitions))
    return "\n".join(section(name, definitions[name]) for name in names)


def section(name, definition):
    """Return the heading, the description, and the fields or values of a type."""
    about = definition.get("description", "")
    if "enum" in definition:
        return f"## {name}\n\n{about}\n\nOne of {', '.join(f'`{each}`' for each in definition['enum'])}.\n"
    required = definition.get("required", ())
    lines = [f"## {name}", "", about, "", "| field | type | default |", "|---|---|---|"]
    for field, kind in definition["properties"].items():
        default = kind.get("default")
        shown = "" if field in required else "its defaults" if isinstance(default, dict) else f"`{json.dumps(default)}`"
        lines.append(f"| `{field}` | {words(kind)} | {shown} |")
    return "\n".join([*lines, ""])


def words(kind):
    """Return the type of a field as a reader needs it."""
    if "const" in kind:
        return f"`{json.dumps(kind['const'])}`"
    if "anyOf" in kind:
        return " or ".join(map(words, kind["anyOf"]))
    if "$ref" in kind:
        name = kind["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if kind.get("type") == "array":
        return f"array of {words(kind['items'])}" if kind.get("items") else "array"
    return str(kind.get("type", "any"))


if __name__ == "__main__":
    sys.stdout.write(text() if "--schema" in sys.argv else page())
