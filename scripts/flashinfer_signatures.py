"""Prints kernels/releases/signatures.json: the parameters of FlashInfer's entry points and wrappers, from its wheels.

pip download --no-deps flashinfer-python==0.6.3
python scripts/flashinfer_signatures.py flashinfer_python-*.whl > kernels/releases/signatures.json
"""

import ast
import json
import sys
import zipfile
from pathlib import Path

from attnfuzz.kernels.releases.stand_ins import ENTRY_POINTS, FAST_PLAN, MERGE, WRAPPERS

_MODULES = (
    "attention",
    "attention/_core",
    "cascade",
    "decode",
    "mla",
    "mla/_core",
    "mla/_batch_mla/_wrapper",
    "prefill",
)
SOURCES = {f"flashinfer/{name}.py" for name in _MODULES}

# In the order of the file, the last definition of a method is the one that runs: those before are overloads. Since
# 0.6.15, `plan` of the decode wrapper passes its arguments on to `_plan_impl`.
METHODS = ("__init__", "plan", "_plan_impl", "run", "forward", "forward_return_lse")


def signatures_of_wheel(wheel: Path) -> dict[str, str]:
    """Read the parameters of entry points and wrappers in a wheel, as Python source without annotations."""
    found = {}
    with zipfile.ZipFile(wheel) as files:
        for source in sorted(SOURCES & {*files.namelist()}):
            for node in ast.parse(files.read(source)).body:
                if isinstance(node, ast.FunctionDef) and node.name in {*ENTRY_POINTS, FAST_PLAN, MERGE}:
                    found[node.name] = parameters(node)
                elif isinstance(node, ast.ClassDef) and node.name in WRAPPERS:
                    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                    for method in [each for each in methods if each.name in METHODS]:
                        found[f"{node.name}.{method.name.replace('_plan_impl', 'plan')}"] = parameters(method)
    return dict(sorted(found.items()))


def parameters(function: ast.FunctionDef) -> str:
    """Return the parameters of a function without annotations."""
    arguments = function.args
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    for argument in filter(None, (*named, arguments.vararg, arguments.kwarg)):
        argument.annotation = None
    return ast.unparse(arguments)


if __name__ == "__main__":
    read = {wheel.name.split("-")[1]: signatures_of_wheel(wheel) for wheel in map(Path, sys.argv[1:])}
    sys.stdout.write(f"{json.dumps(read, indent=2)}\n")
