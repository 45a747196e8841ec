"""Python source to carry along: functions of this project's modules, with all that they use and nothing else."""

import ast
import inspect
from collections.abc import Iterable
from types import ModuleType


def inlined(modules: Iterable[ModuleType], wanted: Iterable[str], renames: dict[str, str]) -> str:
    """Source of the top-level names `wanted` and of those that they use, looked up in `modules`.

    `renames` replaces text in what is returned, such as a call into a module that is not carried along.
    """
    sources: dict[str, tuple[str, set[str]]] = {}
    for module in modules:
        text = inspect.getsource(module)
        for node in ast.parse(text).body:
            segment = ast.get_source_segment(text, node)
            for name in _defined(node):
                if segment is not None:
                    sources[name] = (segment, _used(node))
    needed: set[str] = set()
    queue = list(wanted)
    while queue:
        name = queue.pop()
        if name in sources and name not in needed:
            needed.add(name)
            queue += sources[name][1]
    # In the order of definition, so that constants precede what uses them when it is defined.
    segments = dict.fromkeys(sources[name][0] for name in sources if name in needed)
    result = "\n\n\n".join(segments)
    for old, new in renames.items():
        result = result.replace(old, new)
    return result


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _used(node: ast.stmt) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
