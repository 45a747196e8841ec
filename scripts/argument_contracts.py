"""Prints the tables of docs/reference/arguments.md: the word of FlashInfer and torch on each form of an argument.

python scripts/argument_contracts.py
"""

import sys
from collections.abc import Iterator

from attnfuzz.harness.backends.registry import builtin
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.reference.arguments import ArgumentForm, ArgumentStanding
from attnfuzz.reference.capability import Capability


def page() -> str:
    """Render the tables in markdown."""
    return "\n".join(line for group in _groups() for line in _section(*group)).rstrip() + "\n"


def _groups() -> Iterator[tuple[list[str], Backend]]:
    """Group backends with the same rules and events, by names."""
    groups: dict[object, tuple[list[str], Backend]] = {}
    for name, backend in builtin().items():
        can = backend.capability
        if not isinstance(can, Capability):
            # Other families have no forms of arguments.
            continue
        key = (can.arguments, can.earlier_uses, can.edges)
        if any(key):
            groups.setdefault(key, ([], backend))[0].append(name)
    yield from groups.values()


def _section(names: list[str], backend: Backend) -> Iterator[str]:
    can = backend.capability
    yield f"## {', '.join(names)}"
    entry_points = ", ".join(f"`{op.name}`" for op in backend.ops.values() if op.module)
    if entry_points:
        yield f"Entry points: {entry_points}."
    yield ""
    yield from _forms(can)
    yield from _edges(can)
    if can.earlier_uses:
        yield f"Earlier uses of its objects: {', '.join(can.earlier_uses)}."
        yield ""


def _forms(can: Capability) -> Iterator[str]:
    if not can.arguments:
        return
    yield "| form | standing | source |"
    yield "|---|---|---|"
    rules = {rule.form: rule for rule in can.arguments}
    for standing in ArgumentStanding:
        for form in ArgumentForm:
            if form in rules and rules[form].standing is standing:
                yield f"| {form} | {standing} | {rules[form].source.replace('|', chr(92) + '|')} |"
    yield ""


def _edges(can: Capability) -> Iterator[str]:
    """Yield a line for each standing and source."""
    groups: dict[tuple[ArgumentStanding, str], list[str]] = {}
    for rule in can.edges:
        groups.setdefault((rule.standing, rule.source), []).append(rule.edge)
    for (standing, source), edges in groups.items():
        yield f"Edges, {standing}{f' ({source})' if source else ''}: {', '.join(edges)}."
        yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
