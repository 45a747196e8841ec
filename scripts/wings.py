"""Print the size of each wing, and the imports from each wing to others: python scripts/wings.py [CHECKOUT].

The wings are packages of today's layout. Imports for type checkers alone are left out.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

WINGS = {
    "flashinfer": "kernels.gpu kernels.trtllm kernels.entry_points harness.dumps harness.cli.flashinfer",
    "libraries": "kernels.libraries",
    "engines": "kernels.releases harness.releases harness.cli.releases",
    "sglang": "kernels.sglang",
    "vllm": "kernels.vllm",
    "servers": "harness.serve harness.cli.servers",
    "selftests": "kernels.defects harness.defects harness.reported harness.calibrate harness.cli.selftests",
}
FOLDERS = ("harness", "kernels", "reference", "strategies")


def wing_of(module: str) -> str:
    """Return the wing of a module, "core" if it is of none."""
    for wing, packages in WINGS.items():
        if any(f"{module}.".startswith(f"{package}.") for package in packages.split()):
            return wing
    return "core"


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Yield the modules of attnfuzz that a module imports, in functions too."""
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attnfuzz.") and id(node) not in skipped:
            package = (node.module or "").removeprefix("attnfuzz.")
            for alias in node.names:
                inner = f"{package}.{alias.name}"
                yield inner if inner in known else package


def main() -> None:
    """Print both tables."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    paths = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in FOLDERS
        for path in (root / folder).rglob("*.py")
    }
    modules, classes, lines, across = Counter[str](), Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for module, path in paths.items():
        text, wing = path.read_text(), wing_of(module)
        tree = ast.parse(text)
        modules[wing] += 1
        classes[wing] += sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
        lines[wing] += len(text.splitlines())
        others = map(wing_of, set(imported(tree, set(paths))))
        across.update((wing, other) for other in others if other not in (wing, "core"))
    for wing in ("core", *WINGS):
        print(f"{wing:10} {modules[wing]:4} modules {classes[wing]:4} classes {lines[wing]:6,} lines")  # noqa: T201
    for (wing, other), number in sorted(across.items()):
        print(f"{wing} imports {other}: {number}")  # noqa: T201


if __name__ == "__main__":
    main()
