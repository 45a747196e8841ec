"""Prints packages of constraints.txt with newer releases, and the attention API of FlashInfer that no backend binds.

python scripts/newer_releases.py [WHEEL]

Without WHEEL, the newest release of flashinfer-python is downloaded with pip (100 MB). Its functions are read from the
source, without an import: those with FlashInfer's decorator for public functions, and wrapper classes. Arguments are
compared with the installed release. The answer is markdown, for the summary of a weekly job.
"""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from attnfuzz.harness.backends.registry import builtin

ROOT = Path(__file__).parents[1]
PINS, GPU = ROOT / "constraints.txt", ROOT / "kernels" / "gpu"
WATCHED = ("flashinfer-python", "torch", "triton", "onnxruntime", "openvino", "ray", "hypothesis", "apache-tvm-ffi")
SOURCES = re.compile(
    r"flashinfer/(attention/_core|cascade|cudnn/decode|cudnn/prefill|decode|mla/_\w+|page|pod|prefill|rope|sparse|topk|xqa)\.py"
)
_PUBLIC = ("flashinfer_api", "flashinfer_experimental_api")

Parameters = tuple[str, ...]


def pins() -> dict[str, str]:
    """Read the pinned versions of the watched packages."""
    pairs = (line.split("==") for line in PINS.read_text().splitlines() if "==" in line)
    return {name: version for name, version in pairs if name in WATCHED}


def newest(package: str) -> str:
    """Ask pip for the newest release of a package, "unknown" if it has no answer."""
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.match(rf"{re.escape(package)} \((\S+)\)", asked.stdout)
    return found[1] if found else "unknown"


def downloaded(folder: Path) -> Path:
    """Download the newest wheel of FlashInfer into a folder."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*command, "flashinfer-python"], check=True)
    return next(folder.glob("*.whl"))


def api_of(wheel: Path) -> dict[tuple[str, str], Parameters]:
    """Read the public functions and wrapper classes of attention: module and name, with the names of parameters.

    Those of a class are of its methods `__init__`, `plan` and `run`.
    """
    found: dict[tuple[str, str], Parameters] = {}
    with zipfile.ZipFile(wheel) as files:
        for source in filter(SOURCES.fullmatch, files.namelist()):
            for node in ast.parse(files.read(source)).body:
                if isinstance(node, ast.FunctionDef) and _is_public(node):
                    found[source, node.name] = _names(node)
                elif isinstance(node, ast.ClassDef) and node.name.endswith(("Wrapper", "BatchAttention")):
                    found |= {(source, f"{node.name}.{name}"): each for name, each in _methods(node).items()}
    return found


def _methods(node: ast.ClassDef) -> dict[str, Parameters]:
    # The last definition of a method is the one that runs: those before are overloads.
    methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
    return {each.name.replace("_plan_impl", "plan"): _names(each) for each in methods if each.name in _METHODS}


_METHODS = ("__init__", "plan", "_plan_impl", "run")


def _is_public(node: ast.FunctionDef) -> bool:
    return any(word in ast.unparse(decorator) for decorator in node.decorator_list for word in _PUBLIC)


def _names(node: ast.FunctionDef) -> Parameters:
    arguments = node.args
    return tuple(each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


def bound() -> set[str]:
    """Return the functions and classes of FlashInfer that backends call: their ops, and calls of other families."""
    ops = (op for backend in builtin().values() for op in backend.ops.values())
    called = (re.findall(r'\bcall\(\s*_MODULE,\s*"(\w+)"', path.read_text()) for path in GPU.rglob("*.py"))
    names = {op.name.partition(".")[0] for op in ops if (op.module or "").startswith("flashinfer")}
    return names.union(*called)


def installed(source: str, name: str) -> Parameters:
    """Return the names of the parameters of a function in the installed release: none if it lacks the function."""
    kind, _, method = name.partition(".")
    module = source.removesuffix(".py").replace("/", ".")
    function = getattr(importlib.import_module(module), kind, None)
    plan = "_plan_impl" if method == "plan" and hasattr(function, "_plan_impl") else method
    function = getattr(function, plan, None) if method else function
    return () if function is None else tuple(inspect.signature(function).parameters)


def page(release: str, api: Mapping[tuple[str, str], Parameters], versions: Mapping[str, tuple[str, str]]) -> str:
    """Render the answer: versions are pairs of a pinned and a newest one."""
    return "\n".join((*_releases(versions), "", *_unbound(release, api), "", *_new_arguments(release, api)))


def _releases(versions: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    yield from ("# Newer releases", "", "| package | pinned | newest |", "|---|---|---|")
    yield from (f"| {name} | {pinned} | {found} |" for name, (pinned, found) in versions.items() if pinned != found)


def _unbound(release: str, api: Mapping[tuple[str, str], Parameters]) -> Iterator[str]:
    ours = bound()
    names = dict.fromkeys((source, name.partition(".")[0]) for source, name in api)
    yield from (f"# FlashInfer {release}: functions and classes that no backend calls", "")
    yield from ("| name | source |", "|---|---|")
    yield from (f"| `{name}` | {source} |" for source, name in names if name not in ours)


def _new_arguments(release: str, api: Mapping[tuple[str, str], Parameters]) -> Iterator[str]:
    ours = bound()
    yield from (f"# FlashInfer {release}: arguments that the installed release lacks", "")
    yield from ("| name | arguments |", "|---|---|")
    for (source, name), parameters in api.items():
        known = installed(source, name) if name.partition(".")[0] in ours else parameters
        if lacking := [each for each in parameters if each not in known]:
            yield f"| `{name}` | {', '.join(f'`{each}`' for each in lacking)} |"


def _main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(sys.argv[1]) if len(sys.argv) > 1 else downloaded(Path(folder))
        versions = {name: (pinned, newest(name)) for name, pinned in pins().items()}
        sys.stdout.write(f"{page(wheel.name.split('-')[1], api_of(wheel), versions)}\n")


if __name__ == "__main__":
    _main()
