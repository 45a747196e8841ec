"""Python source to carry along: functions of this project's modules, with all that they use and nothing else."""

import ast
import inspect
from collections.abc import Iterable
from types import ModuleType


def inlined(modules: Iterable[ModuleType], wanted: Iterable[str], renames: dict[str, str]) -> str:
    """Source of the top-level names `wanted` and of those that they use, looked up in `modules`.

    `renames` replaces text in what is returned, such as a call into a module that is not carried along.
    """
    definitions = [definition for module in modules for definition in _definitions(module)]
    used = {name: names for defined, names, _ in definitions for name in defined}
    needed: set[str] = set()
    queue = list(wanted)
    while queue:
        name = queue.pop()
        if name in used and name not in needed:
            needed.add(name)
            queue += used[name]
    # In the order of definition, so that constants precede what uses them when it is defined.
    result = "\n\n\n".join(text for defined, _, text in definitions if needed.intersection(defined))
    for old, new in renames.items():
        result = result.replace(old, new)
    return result


def _definitions(module: ModuleType) -> Iterable[tuple[list[str], set[str], str]]:
    """For each statement of a module that defines names: these, the names that it uses, and its source."""
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
