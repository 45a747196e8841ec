"""The imports from the standard library that a script's text needs."""

import ast

_MODULES = frozenset(
    {"base64", "ctypes", "faulthandler", "fcntl", "hashlib", "math", "mmap", "os"}
    | {"shutil", "signal", "struct", "sys", "traceback", "zlib"}
)
_NAMES = {
    "Any": "typing",
    "Final": "typing",
    "Path": "pathlib",
    "Sequence": "collections.abc",
    "inf": "math",
    "nan": "math",
}


def standard_imports(text: str) -> list[str]:
    """Import statements, sorted, for the modules above and names in them that `text` uses."""
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    names: dict[str, list[str]] = {}
    for name in sorted(used & _NAMES.keys()):
        names.setdefault(_NAMES[name], []).append(name)
    whole = [f"import {module}" for module in sorted(used & _MODULES)]
    return whole + [f"from {module} import {', '.join(found)}" for module, found in sorted(names.items())]
