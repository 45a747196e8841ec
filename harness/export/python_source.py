"""Python source text: literals, variable names, imports, and this project's functions in a script."""

import ast
import inspect
import keyword
import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType, ModuleType

WIDTH = 100
"""Maximum line length in characters; longer items are not broken."""


def source(text: str) -> str:
    """Return a file's text as a string literal, with one source line per line if possible."""
    plain = "'''" not in text and not text.endswith(("\\", "'"))
    return f"r'''{text}'''" if plain else repr(text)


def in_docstring(text: str) -> str:
    """Return text as one line of a docstring in triple double quotes."""
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    return text.replace("\\", "\\\\").replace('"""', "'''")


def quoted(value: object) -> str:
    """Return a value's repr, but text in double quotes if that needs no escapes."""
    text = repr(value)
    inner = text[1:-1]
    return f'"{inner}"' if isinstance(value, str) and text[0] == "'" and '"' not in inner else text


def variables(
    names: Iterable[str], taken: Collection[str], instead: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Return a unique Python name for each of `names`, neither a keyword nor among those `taken`.

    Those in `instead` get a name like the one there.
    """
    found: dict[str, str] = {}
    used = set(taken)
    for name in names:
        base = re.sub(r"\W", "_", instead.get(name, name), flags=re.ASCII)
        if not base or base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        variable, number = base, 2
        while variable in used:
            variable, number = f"{base}_{number}", number + 1
        used.add(variable)
        found[name] = variable
    return found


_MODULES = frozenset(
    {"base64", "contextlib", "copy", "ctypes", "faulthandler", "fcntl", "hashlib", "importlib", "io", "math", "mmap"}
    | {
        "os",
        "re",
        "shutil",
        "signal",
        "struct",
        "subprocess",
        "sys",
        "tempfile",
        "time",
        "traceback",
        "warnings",
        "zlib",
    }
)
_NAMES = {
    "Any": "typing",
    "Final": "typing",
    "Callable": "collections.abc",
    "Iterable": "collections.abc",
    "Iterator": "collections.abc",
    "Path": "pathlib",
    "Sequence": "collections.abc",
    "inf": "math",
    "nan": "math",
}


def standard_imports(text: str) -> list[str]:
    """Return sorted import statements for the modules and names above that `text` uses."""
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    names: dict[str, list[str]] = {}
    for name in sorted(used & _NAMES.keys()):
        names.setdefault(_NAMES[name], []).append(name)
    whole = [f"import {module}" for module in sorted(used & _MODULES)]
    return whole + [f"from {module} import {', '.join(found)}" for module, found in sorted(names.items())]


def inlined(modules: Iterable[ModuleType], wanted: Iterable[str], renames: dict[str, str]) -> str:
    """Return the source of the top-level names `wanted` of `modules`, and of names that they use, after `renames`."""
    found = [definition for module in modules for definition in definitions(module)]
    used = {name: names for defined, names, _ in found for name in defined}
    needed: set[str] = set()
    queue = list(wanted)
    while queue:
        name = queue.pop()
        if name in used and name not in needed:
            needed.add(name)
            queue += used[name]
    # In order of definition, so that constants precede their uses.
    result = "\n\n\n".join(text for defined, _, text in found if needed.intersection(defined))
    for old, new in renames.items():
        result = result.replace(old, new)
    return result


def definitions(module: ModuleType) -> Iterable[tuple[list[str], set[str], str]]:
    """Yield, for each defining statement of a module, the names that it defines, those that it uses, and its source."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    for node in ast.parse(source).body:
        names = _defined(node)
        if names:
            decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
            first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            yield names, used, "\n".join(lines[first - 1 : node.end_lineno])


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def packed_lines(items: Iterable[str], indent: str) -> list[str]:
    """Fill lines with items, each with a comma."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 2 <= WIDTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"{indent}{item},")
    return lines
