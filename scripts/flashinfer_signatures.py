"""Prints kernels/releases/signatures.json: the parameters of FlashInfer's entry points, read from released wheels.

pip download --no-deps flashinfer-python==0.6.3
python scripts/flashinfer_signatures.py flashinfer_python-*.whl > kernels/releases/signatures.json
"""

import ast
import json
import sys
import zipfile
from pathlib import Path

from attnfuzz.kernels.releases.stand_ins import ENTRY_POINTS

SOURCES = {f"flashinfer/{name}" for name in ("decode.py", "prefill.py", "mla.py", "mla/_core.py")}


def signatures_of_wheel(wheel: Path) -> dict[str, str]:
    """The parameters of each entry point in a wheel, as Python source without annotations."""
    found = {}
    with zipfile.ZipFile(wheel) as files:
        for source in sorted(SOURCES & {*files.namelist()}):
            for node in ast.parse(files.read(source)).body:
                if isinstance(node, ast.FunctionDef) and node.name in ENTRY_POINTS:
                    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                        argument.annotation = None
                    found[node.name] = ast.unparse(node.args)
    return dict(sorted(found.items()))


if __name__ == "__main__":
    read = {wheel.name.split("-")[1]: signatures_of_wheel(wheel) for wheel in map(Path, sys.argv[1:])}
    sys.stdout.write(f"{json.dumps(read, indent=2)}\n")
