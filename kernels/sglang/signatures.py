"""Signatures of FlashInfer's entry points by version: calls are bound like those of the version that a release pins.

They are read from released wheels, so that no FlashInfer has to be installed:

pip download --no-deps flashinfer-python==0.6.3
python -m attnfuzz.kernels.sglang.signatures flashinfer_python-*.whl > kernels/sglang/signatures.json
"""

import ast
import inspect
import json
import sys
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from packaging.version import Version

from attnfuzz.kernels.sglang.stand_ins import ENTRY_POINTS

_FILE: Final = Path(__file__).with_name("signatures.json")
_SOURCES: Final = tuple(f"flashinfer/{name}" for name in ("decode.py", "prefill.py", "mla.py", "mla/_core.py"))


@cache
def signatures(flashinfer: Version | None) -> Mapping[str, inspect.Signature]:
    """The signature of each function in this version, or in the last known one before it; None selects the newest.

    A version before all known ones gets the oldest.
    """
    known = sorted((Version(name), functions) for name, functions in json.loads(_FILE.read_text()).items())
    _, functions = max((each for each in known if flashinfer is None or each[0] <= flashinfer), default=known[0])
    return {name: _signature(parameters) for name, parameters in functions.items()}


def _signature(parameters: str) -> inspect.Signature:
    """Parse a signature in the file; its defaults are literals."""
    function = ast.parse(f"def function({parameters}): ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    required = [None] * (len(given.args) - len(given.defaults))
    defaults = [*required, *given.defaults, *given.kw_defaults]
    made = []
    for place, (name, default) in enumerate(zip([*given.args, *given.kwonlyargs], defaults, strict=True)):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if place < len(given.args) else inspect.Parameter.KEYWORD_ONLY
        value = inspect.Parameter.empty if default is None else ast.literal_eval(default)
        made.append(inspect.Parameter(name.arg, kind, default=value))
    return inspect.Signature(made)


def signatures_of_wheel(wheel: Path) -> dict[str, str]:
    """The parameters of each entry point in a wheel, as Python source without annotations."""
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
    read = {wheel.name.split("-")[1]: signatures_of_wheel(wheel) for wheel in map(Path, sys.argv[1:])}
    sys.stdout.write(f"{json.dumps(read, indent=2)}\n")
