"""Reads what FlashInfer's entry points take from released wheels: what signatures.json was made by.

pip download --no-deps flashinfer-python==0.6.3
python -m attnfuzz.kernels.sglang.read_signatures flashinfer_python-*.whl > kernels/sglang/signatures.json
"""

import ast
import json
import sys
import zipfile
from pathlib import Path
from typing import Final

from attnfuzz.kernels.sglang.stand_ins import ENTRY_POINTS

_SOURCES: Final = tuple(f"flashinfer/{name}" for name in ("decode.py", "prefill.py", "mla.py", "mla/_core.py"))


def signatures(wheel: Path) -> dict[str, str]:
    """The parameters of each function that a wheel has, as Python writes them, without annotations."""
    found = {}
    with zipfile.ZipFile(wheel) as files:
        for source in sorted({*_SOURCES} & {*files.namelist()}):
            for node in ast.parse(files.read(source)).body:
                if isinstance(node, ast.FunctionDef) and node.name in ENTRY_POINTS:
                    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                        argument.annotation = None
                    found[node.name] = ast.unparse(node.args)
    return dict(sorted(found.items()))


if __name__ == "__main__":
    wheels = [Path(name) for name in sys.argv[1:]]
    sys.stdout.write(json.dumps({wheel.name.split("-")[1]: signatures(wheel) for wheel in wheels}, indent=2) + "\n")
