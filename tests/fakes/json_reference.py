"""The schema of answers in JSON, and its page in the docs.

python tests/fakes/json_reference.py > docs/reference/json-schema.json
"""

import inspect
import json
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from attnfuzz.harness.cli import answers
from attnfuzz.harness.cli.flashinfer import answers as flashinfer
from attnfuzz.harness.cli.releases import answers as releases
from attnfuzz.harness.cli.selftests import answers as selftests
from attnfuzz.harness.cli.servers import answers as servers
from attnfuzz.harness.defects.results import DefectScore
from attnfuzz.harness.triage import Triage

ANSWERS: Mapping[str, tuple[type[msgspec.Struct], ...]] = {
    "fuzz": (answers.CampaignAnswer,),
    "serve": (servers.ServeAnswer,),
    "report": (answers.CampaignAnswer, servers.ServeAnswer),
    "compare": (answers.Differences,),
    "check": (answers.Checked,),
    "new": (answers.ReplayAnswer,),
    "replay": (answers.ReplayAnswer,),
    "import": (flashinfer.Imported, flashinfer.DumpAnswer),
    "triage": (Triage,),
    "shrink": (answers.Smaller,),
    "bisect": (releases.Bisected,),
    "sweep": (releases.Swept,),
    "findings list": (answers.Findings, servers.ServerFindings),
    "findings show": (answers.ShownFinding, servers.ShownServerFinding),
    "corpus list": (answers.CorpusCases,),
    "corpus add": (answers.CorpusChange,),
    "corpus merge": (answers.CorpusChange,),
    "corpus prune": (answers.CorpusChange,),
    "bugs list": (selftests.Bugs,),
    "bugs show": (selftests.Bugs,),
    "bugs run": (selftests.BugResults,),
    "defects list": (selftests.Defects,),
    "defects run": (DefectScore,),
    "mutants": (selftests.MutantsAnswer,),
    "backends": (answers.Backends, answers.BackendMargins),
    "doctor": (answers.Examination,),
    "build": (flashinfer.Modules,),
    "calibrate": (selftests.Calibrations,),
}
"""The answers of each command: one, or several for options that ask something else."""


def _types() -> list[type[msgspec.Struct]]:
    return list(dict.fromkeys(each for several in ANSWERS.values() for each in several))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of every answer, and of the types in their fields."""
    _, components = msgspec.json.schema_components(_types(), ref_template="#/$defs/{name}")
    definitions = _in_one_form(dict(sorted(components.items())))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": definitions}


def _in_one_form(node: Any) -> Any:
    """The alternatives of each union in one order, and descriptions without the indentation of their docstrings.

    Releases of msgspec differ in both.
    """
    if isinstance(node, list):
        return [_in_one_form(each) for each in node]
    if not isinstance(node, dict):
        return node
    changed = {key: _in_one_form(value) for key, value in node.items()}
    if "anyOf" in changed:
        changed["anyOf"].sort(key=lambda kind: kind == {"type": "null"})
    if isinstance(changed.get("description"), str):
        changed["description"] = inspect.cleandoc(changed["description"])
    return changed


def page() -> str:
    """Return the tables of the page in markdown: the answer of each command, then every type."""
    parts = ["| command | answer |\n|---|---|\n"]
    for command, types in ANSWERS.items():
        links = ", ".join(f"[{each.__name__}](#{each.__name__.lower()})" for each in types)
        parts.append(f"| `attnfuzz {command}` | {links} |\n")
    definitions = schema()["$defs"]
    names = dict.fromkeys((*(each.__name__ for each in _types()), *definitions))
    parts.extend(_section(name, definitions[name]) for name in names)
    return "".join(parts)


def _section(name: str, definition: Mapping[str, Any]) -> str:
    """A type with its fields, or its values."""
    heading = f"\n## {name}\n\n{definition['description']}\n\n"
    if "enum" in definition:
        return heading + "One of " + ", ".join(f"`{value}`" for value in definition["enum"]) + ".\n"
    fields = (f"| `{field}` | {_words(kind)} |\n" for field, kind in definition["properties"].items())
    return f"{heading}| field | type |\n|---|---|\n{''.join(fields)}"


def _words(kind: Mapping[str, Any]) -> str:
    """A type as a reader of the page needs it."""
    if "anyOf" in kind:
        return " or ".join(map(_words, kind["anyOf"]))
    if "$ref" in kind:
        name = kind["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if kind.get("type") == "array":
        return f"array of {_words(kind['items'])}" if kind.get("items") else "array"
    if kind.get("type") == "object" and isinstance(kind.get("additionalProperties"), dict):
        return f"object of {_words(kind['additionalProperties'])}"
    return str(kind.get("type", "any"))


def text() -> str:
    """Return the content of docs/reference/json-schema.json."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
