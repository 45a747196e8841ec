"""Print a script of this folder as one file: python _single_file.py SCRIPT > FILE."""

import ast
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
_SHARED = re.compile(r"^from (_\w+) import (\([^)]*\)|.*)\n", re.MULTILINE)


def single_file(script):
    """Return the source of a script, with the code of shared modules that it uses in place of their imports."""
    seen = set()

    def source(match):
        name = match[1]
        if name in seen:
            return ""
        seen.add(name)
        module = (FOLDER / f"{name}.py").read_text()
        without_docstring = "".join(module.splitlines(keepends=True)[ast.parse(module).body[0].end_lineno :])
        return _SHARED.sub(source, without_docstring) + "\n\n"

    return _used_code(_SHARED.sub(source, Path(script).read_text()))


def _used_code(source):
    """Return the source without the functions, classes and imports at its top level that it never uses."""
    while True:
        tree = ast.parse(source)
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        unused = [each for each in tree.body if (names := _bound(each)) and names.isdisjoint(used)]
        if not unused:
            return re.sub(r"\n{4,}", "\n\n\n", source)
        lines = source.splitlines(keepends=True)
        for each in reversed(unused):
            first = min(line.lineno for line in (each, *getattr(each, "decorator_list", ())))
            del lines[first - 1 : each.end_lineno]
        source = "".join(lines)


def _bound(statement):
    """Return the names that an import or a definition binds. Assignments stay: a call on the right may have effects."""
    match statement:
        case ast.Import(names) | ast.ImportFrom(names=names):
            return {alias.asname or alias.name.partition(".")[0] for alias in names}
        case ast.FunctionDef(name) | ast.ClassDef(name):
            return {name}
    return set()


if __name__ == "__main__":
    print(single_file(sys.argv[1]), end="")
