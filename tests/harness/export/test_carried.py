"""Scripts with code of a user's: which statements they have, and that they show the failure without attnfuzz."""

import base64
import subprocess
import sys
import zlib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.export import CannotExport, Exporter, carried
from attnfuzz.harness.export.carried import CarriedFile, NeedsFiles, carried_name, check_complete, needed_by, read_files
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.geometry import KvLayout

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"

SOURCE = '''"""My kernel."""
import json
import torch
from attnfuzz import Capability, FunctionBackend, Unsupported
from attnfuzz.reference.case import Mode as M

torch.set_num_threads(1)
SCALE = 2  # kept
CAN = Capability(modes=(M.DECODE,))


def helper(x):
    if x is None:
        raise Unsupported("nothing")
    return x * SCALE


@torch.no_grad()
def attend(*, out, query, **_):
    out.copy_(helper(query))


def uses_ours():
    return M.DECODE


class Wrapped:
    default = CAN, json.dumps


MINE = FunctionBackend(attend, CAN)
if __name__ == "__main__":
    print(MINE)
'''

KEPT = '''"""My kernel."""
import torch
class Unsupported(Exception):
    """The kernel does not support the arguments."""

torch.set_num_threads(1)
SCALE = 2  # kept


def helper(x):
    if x is None:
        raise Unsupported("nothing")
    return x * SCALE


@torch.no_grad()
def attend(*, out, query, **_):
    out.copy_(helper(query))
'''


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


@pytest.fixture
def file(tmp_path: Path) -> CarriedFile:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return read_files([path])[0]


def op_in(module: str, name: str) -> Op:
    def function() -> None: ...

    function.__module__, function.__qualname__ = module, name
    return Op(name="attend", function=function, writes=frozenset())


def test_statements_that_need_attnfuzz_stay_behind(file: CarriedFile) -> None:
    assert lines_of(file.without) == lines_of(KEPT)


def test_statements_that_need_a_family_of_ops_stay_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("copy", "copy_op.family:COPY", "attnfuzz.families")
    monkeypatch.setattr(carried, "_other_families", lambda: (point,))
    path = tmp_path / "mine.py"
    path.write_text("from copy_op import COPY\ndef mine(out):\n    out.zero_()\nMINE = COPY.backend('mine', mine)\n")
    assert lines_of(read_files([path])[0].without) == ["def mine(out):", "    out.zero_()"]


def test_a_function_is_found_by_the_module_that_it_belongs_to(file: CarriedFile) -> None:
    folder = file.path.parent.name
    for module in ("mine", f"{folder}.mine"):
        assert carried_name(op_in(module, "attend"), [file]) == (file, "attend")
    assert carried_name(op_in("another.mine", "attend"), [file]) is None
    assert carried_name(op_in("mine", "attend"), []) is None


def test_a_packages_own_file_is_the_package(tmp_path: Path) -> None:
    path = tmp_path / "mine" / "__init__.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    (file,) = read_files([path])
    assert carried_name(op_in("mine", "attend"), [file]) == (file, "attend")
    assert carried_name(op_in("__init__", "attend"), [file]) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("uses_ours", "uses_ours in .*mine.py needs more of attnfuzz than a script has"),
        ("make.<locals>.attend", "not at the top level of .*mine.py: move it there"),
    ],
)
def test_a_function_that_does_not_stand_alone_is_refused(file: CarriedFile, name: str, words: str) -> None:
    with pytest.raises(CannotExport, match=words):
        carried_name(op_in("mine", name), [file])


@pytest.mark.parametrize("content", [b"def attend(:", b"\xff\xfe\x00"])
def test_a_file_that_is_no_python_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes(content)
    with pytest.raises(CannotExport, match=r"mine\.py can't be carried along"):
        read_files([path])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A file that imports its neighbours, and names a source that it compiles."""
    files = {
        "mine.py": "import torch\nfrom helpers import scale\nfrom pkg.sub import deep\nSOURCE = 'csrc/kernel.cpp'\n"
        "from attnfuzz.reference import case\nBACKEND = case.Case('unused.py')\n\ndef attend(): ...\n",
        "helpers.py": "import json\n\nscale = 2\n",
        "unused.py": "",
        "pkg/__init__.py": "",
        "pkg/sub.py": "from . import other\n\ndeep = other\n",
        "pkg/other.py": "",
        "csrc/kernel.cpp": "int main() {}\n",
        "csrc/kernel.h": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_files_that_a_file_imports_or_names_are_found(project: Path) -> None:
    found = [path.relative_to(project).as_posix() for path in needed_by(project / "mine.py")]
    assert found == ["helpers.py", "pkg/__init__.py", "pkg/sub.py", "csrc/kernel.cpp", "pkg/other.py"]


def test_files_that_a_file_needs_are_listed_with_the_command_that_carries_them(project: Path) -> None:
    mine = project / "mine.py"
    with pytest.raises(NeedsFiles) as refused:
        check_complete(read_files([mine]), [mine])
    text = refused.value.advice("finding")
    assert "mine.py needs helpers.py, which is beside it" in text
    assert "helpers.py (23 bytes), pkg/__init__.py (0 bytes), " in text
    assert f"attnfuzz export finding --carry {mine} --carry {project / 'helpers.py'} --carry " in text
    given = [mine, *refused.value.files]
    check_complete(read_files(given), given)


def test_carried_files_keep_their_places(project: Path) -> None:
    given = [project / name for name in ("mine.py", "helpers.py", "csrc", "pkg")]
    check_complete(read_files(given), given)
    names = {each.name for each in read_files(given)}
    assert names == {
        *("mine.py", "helpers.py", "csrc/kernel.cpp", "csrc/kernel.h"),
        *("pkg/__init__.py", "pkg/sub.py", "pkg/other.py"),
    }
    assert next(each.module for each in read_files(given) if each.name == "pkg/sub.py") == "pkg.sub"


def test_a_prebuilt_library_is_carried_bit_for_bit(tmp_path: Path) -> None:
    library = tmp_path / "libmine.so"
    library.write_bytes(bytes(range(256)) * 10)
    (file,) = read_files([library])
    assert eval(file.source, {"zlib": zlib, "base64": base64}) == library.read_bytes()  # noqa: S307 - what we made


def test_more_than_a_script_can_carry_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "MOST_BYTES", 10)
    with pytest.raises(CannotExport, match="a script carries at most 0 MiB"):
        read_files([project])


def ran(script: str, folder: Path) -> tuple[int, str]:
    """The exit code and the output of a script, where attnfuzz can't be imported."""
    blocked = folder / "alone" / "attnfuzz"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError")
    path = blocked.parent / "script.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_script_has_the_kernel_and_its_arranged_arguments(runner: Runner, tmp_path: Path) -> None:
    """A script is a process of its own."""
    file = tmp_path / "mine.py"
    file.write_text((EXAMPLES / "own_layout.py").read_text().replace("tril(kv_len - q.shape[1])", "tril(kv_len)"))
    geometry = replace(HEADS, kv_layout=KvLayout.NHD, head_dim_qk=64, head_dim_vo=64)
    case = Case(backend=f"{file}:MINE", geometry=geometry, steps=(step(Mode.EXTEND, (3, 9)),))
    with pytest.raises(NeedsFiles) as refused:
        Exporter(case, runner).script()
    assert refused.value.advice("case.json").endswith(f"with attnfuzz export case.json --carry {file}")
    exporter = Exporter(case, runner, carry=[file])
    assert exporter.seen is not None
    assert exporter.seen.kind is Kind.OUTPUT_MISMATCH
    code, printed = ran(exporter.script(), tmp_path)
    assert (code, "rows are wrong" in printed) == (1, True), printed


@pytest.mark.slow
def test_files_that_import_each_other_are_carried_together(runner: Runner, tmp_path: Path) -> None:
    """A script is a process of its own."""
    package = EXAMPLES / "paged_attention" / "src" / "paged_attention"
    folder = tmp_path / "paged_attention"
    folder.mkdir()
    for name in ("__init__.py", "fuzzing.py"):
        (folder / name).write_text((package / name).read_text().replace("tril(kv_len - len(q))", "tril(kv_len)"))
    backend = tmp_path / "mine.py"
    backend.write_text("from paged_attention.fuzzing import BACKEND as MINE")
    geometry = replace(HEADS, kv_layout=KvLayout.NHD)
    case = Case(backend=f"{backend}:MINE", geometry=geometry, steps=(step(Mode.EXTEND, (3, 9)),))
    script = Exporter(case, runner, carry=sorted(folder.glob("*.py"))).script()
    code, printed = ran(script, tmp_path)
    assert (code, "rows are wrong" in printed) == (1, True), printed


@pytest.mark.slow
def test_a_script_of_a_variation_has_its_kernel_beside_those_of_attnfuzz(runner: Runner, tmp_path: Path) -> None:
    """A script is a process of its own."""
    file = tmp_path / "mine.py"
    file.write_text((EXAMPLES / "varied_backend.py").read_text().replace("* bmm2_scale", "* 2"))
    case = Case(backend=f"{file}:MY_DECODE", geometry=HEADS, steps=(step(Mode.DECODE, (1, 9)),))
    code, printed = ran(Exporter(case, runner, carry=[file]).script(), tmp_path)
    assert (code, "rows are wrong" in printed) == (1, True), printed


@pytest.mark.slow
def test_a_kernel_is_carried_with_the_source_that_it_compiles(runner: Runner, tmp_path: Path) -> None:
    """A script is a process of its own."""
    example = (EXAMPLES / "own_layout.py").read_text()
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "fill.cpp").write_text(
        'extern "C" void fill(float* out, long n) { for (long i = 0; i < n; ++i) out[i] = 1; }'
    )
    build = (
        "import ctypes, subprocess\nfrom pathlib import Path\nHERE = Path(__file__).parent\n"
        'subprocess.run(["c++", "-shared", "-fPIC", "-o", HERE / "built.so", HERE / "csrc/fill.cpp"], check=True)\n'
        'FILL = ctypes.CDLL(str(HERE / "built.so")).fill\n'
    )
    file = tmp_path / "mine.py"
    start = example.index("import ")
    file.write_text(example[:start] + build + example[start:])
    geometry = replace(HEADS, kv_layout=KvLayout.NHD, head_dim_qk=64, head_dim_vo=64)
    case = Case(backend=f"{file}:MINE", geometry=geometry, steps=(step(Mode.EXTEND, (3, 9)),))
    with pytest.raises(NeedsFiles, match=r"csrc/fill\.cpp"):
        Exporter(case, runner, carry=[file])
    script = Exporter(case, runner, carry=[file, tmp_path / "csrc"]).script()
    assert ran(script, tmp_path)[0] == 0
