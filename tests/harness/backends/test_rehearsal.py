"""A user's backend is imported and asked in a process that may die: whatever it does is one message, and no exit code.

These start processes, since the point is what a file does to the one that imports it.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from attnfuzz.harness.backends import rehearsal
from attnfuzz.harness.backends.load import BackendFileError, BackendSource
from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.cli.given import compiled_backends
from attnfuzz.harness.cli.terminal import BadInput
from attnfuzz.kernels.gpu import build_record
from attnfuzz.kernels.gpu.build_record import ARCH_LIST, Built
from attnfuzz.kernels.interface.toolchain import BUILT, lacks_modules
from attnfuzz.kernels.libraries.torch_sdpa import SDPA_BACKENDS
from attnfuzz.reference.dtypes import DType

pytestmark = pytest.mark.slow

Write = Callable[[str], str]

GOOD = """
from attnfuzz.kernels.functions.function_backend import FunctionBackend

def attend(**arguments): ...

MINE = FunctionBackend(attend)
"""

CLASS = """
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.noise import NoiseModel

class MINE:
    name = "mine"
    capability = Capability(modes=(Mode.DECODE,))
    contract = Contract()
    ops = {}
    def noise(self, dtype): return NoiseModel.unknown_kernel()
    def missing(self): return None
    def prepare(self, progress): ...
    def open(self, case, bench): ...
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a backend file, and gives the name of its backend MINE."""

    def written(text: str) -> str:
        path = tmp_path / "mine.py"
        path.write_text(text)
        return f"{path}:MINE"

    return written


@pytest.mark.parametrize(
    ("at_import", "words"),
    [
        ("class O(BaseException): ...\nraise O('gone')", "fails to import: O: gone$"),
        ("raise KeyboardInterrupt", "fails to import: KeyboardInterrupt: $"),
        ("raise SystemExit(0)", "fails to import: SystemExit: 0$"),
        ("raise GeneratorExit", "fails to import: GeneratorExit: $"),
        ("def f(): f()\nf()", "fails to import: RecursionError"),
        ("class E(Exception):\n  def __str__(self): raise SystemExit(0)\nraise E", "E: its __str__ raises$"),
        ("import os; os._exit(0)", "import ended its process: the process left with exit code 0"),
        ("import os; os.kill(os.getpid(), 9)", "import ended its process: killed by SIGKILL"),
        ("import ctypes; ctypes.string_at(8)", "import ended its process: killed by SIGSEGV"),
        ("print('no GPU', flush=True)\nimport os; os._exit(0)", "It printed last:\n  no GPU$"),
        ("import os; os.write(1, b'x' * 10**7); os._exit(0)", r"It printed last:\n[ x]{900,1010}$"),
        ("import os; os.write(1, b'\\x1b]52;c;AAAA\\x07'); os._exit(0)", "\N{REPLACEMENT CHARACTER}]52;c;AAAA"),
        ("import os\nif not os.fork(): os._exit(0)\nos._exit(3)", "exit code 3"),
    ],
)
def test_whatever_an_import_does_is_one_message(write: Write, at_import: str, words: str) -> None:
    name = write(at_import)
    with pytest.raises(BackendFileError, match=words) as raised:
        resolve(name)
    assert name.removesuffix(":MINE") in str(raised.value)


@pytest.mark.parametrize(
    "at_import",
    [
        "import sys; sys.stdout = sys.stderr = None; sys.path.clear(); sys.excepthook = None",
        "import os, signal; os.chdir('/'); signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "import atexit, os; atexit.register(os._exit, 0)",
        "import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
        "import os\nif not os.fork(): os._exit(0)",
    ],
)
def test_an_import_in_a_worker_changes_no_state_of_this_process(write: Write, at_import: str) -> None:
    def state() -> tuple[object, ...]:
        return (sys.stdout, list(sys.path), sys.excepthook, Path.cwd(), signal.getsignal(signal.SIGINT))

    before, threads = state(), threading.active_count()
    assert resolve(write(f"{at_import}\n{GOOD}")).name == "attend"
    assert state() == before
    assert threading.active_count() == threads
    assert not [name for name in sys.modules if "mine_py" in name]


def test_a_hanging_import_is_reported_and_then_given_up(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rehearsal, "IMPORT_SECONDS", 0.4)
    monkeypatch.setattr(rehearsal, "_SILENT_SECONDS", 0.1)
    with pytest.raises(BackendFileError, match=r"import did not end within \d s: move slow work into its prep"):
        resolve(write("import time; time.sleep(10000)"))
    assert re.fullmatch(r"Waiting for import of \S+mine\.py:MINE, for up to 0\.8 s\.\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("def __init__(self): raise KeyboardInterrupt", "can't be made without arguments: KeyboardInterrupt"),
        ("def __init__(self): __import__('os')._exit(0)", "ended its process: the process left with exit code 0"),
        ("capability = property(lambda self: 1 / 0)", "its capability raises ZeroDivisionError"),
        ("capability = None", "its capability is None: make it a Capability of attnfuzz"),
        ("capability = Capability(modes=())", "its capability has no modes: name at least one"),
        (
            "capability = Capability(page_sizes=(0, 16))",
            "page_sizes of its capability has 0: give numbers of at least 1",
        ),
        ("capability = Capability(max_head_dim=4)", "no drawn head dim is at most the max_head_dim 4"),
        ("class contract: ...", "its contract is of the type type: make it a Contract"),
        ("name = 'a\\x1b[31m'", "its name must be a str of 1 to 200 printable characters"),
        ("name = 'a' * 201", "its name must be a str"),
        ("name = None", "its name must be a str"),
        ("ops = property(lambda self: exit(0))", "its ops raises SystemExit: 0"),
        ("ops = None", "its ops are None: make them a dict from names to Op"),
        ("ops = {'attend': len}", "its op attend is no Op with a callable function"),
        ("ops = {3: Op(name='x', function=len, writes=frozenset())}", "an op: its name must be a str"),
        ("noise = None", r"its noise\(float32\) raises TypeError: 'NoneType' object is not callable"),
        ("def noise(self, dtype): return None", r"its noise\(float32\) is None: make it a NoiseModel"),
        (
            "def noise(self, d): return NoiseModel(probabilities=float('nan'), logits=0.0, accumulate=0.0)",
            r"probabilities of its noise\(float32\) must be a finite number of at least 0",
        ),
        ("def missing(self): raise RuntimeError('no\\ndriver')", r"its missing\(\) raises RuntimeError: no$"),
        ("def missing(self): return 3", r"its missing\(\) gives of the type int|its missing\(\) gives"),
        ("def __getattribute__(self, name): raise OSError(5, name)", "its name raises OSError"),
        ("open = property()", "is not a backend, it lacks open"),
    ],
)
def test_a_backend_that_can_not_be_used_names_the_part(write: Write, line: str, words: str) -> None:
    with pytest.raises(BackendFileError, match=words) as raised:
        resolve(write(f"{CLASS}    {line}\n"))
    assert "mine.py:MINE" in str(raised.value)


@pytest.mark.parametrize(
    ("capability", "words"),
    [
        ("Capability(modes=(Mode.DECODE,), max_head_dim='x')", "max_head_dim is 'x': give an integer"),
        ("Capability(modes=('no_mode',))", r"modes is \('no_mode',\): give a tuple of decode"),
        ("Capability(modes=(Mode.DECODE,), dtypes=3)", "Capability: dtypes is 3: give a tuple of "),
        ("Capability(head_dim=64)", r"Unexpected keyword argument 'head_dim' \(did you mean .*head_dims"),
    ],
)
def test_a_capability_with_a_wrong_field_names_it_and_its_values(write: Write, capability: str, words: str) -> None:
    with pytest.raises(BackendFileError, match=rf"mine.py:\d+ fails to import: TypeError: .*{words}"):
        resolve(write(f"{CLASS}    capability = {capability}\n"))


def test_an_object_that_answers_everything_is_no_backend(write: Write) -> None:
    text = "class Yes:\n    def __getattr__(self, name): return self\nMINE = Yes()"
    with pytest.raises(BackendFileError, match="its capability is of the type Yes"):
        resolve(write(text))


def test_a_prepare_that_raises_is_named(write: Write) -> None:
    backend = resolve(write(f"{CLASS}    def prepare(self, progress): raise KeyError('nvcc')\n"))
    with pytest.raises(BackendFileError, match=r"its prepare\(\) raises KeyError: 'nvcc'$"):
        backend.prepare(lambda _: None)


def test_a_prepare_that_ends_its_process_is_named(write: Write) -> None:
    backend = resolve(write(f"{CLASS}    def prepare(self, progress): __import__('os')._exit(0)\n"))
    with pytest.raises(BackendFileError, match=r"prepare\(\) ended its process: the process left with exit code 0"):
        backend.prepare(lambda _: None)


COMPILES = """
from attnfuzz.kernels.gpu import toolchain
from attnfuzz.reference.device import Device

def compiling(backends):
    for number in range(1, 3):
        yield f"{number} of 2 modules of {[each.name for each in backends]}"

toolchain.compiling = compiling
MINE.capability = Capability(device=Device.CUDA, modes=(Mode.DECODE,))
"""


def test_modules_of_a_users_backend_are_compiled_with_a_line_for_each(write: Write) -> None:
    lines: list[str] = []
    resolve(write(f"{CLASS}{COMPILES}")).prepare(lines.append)
    assert lines == ["1 of 2 modules of ['mine']", "2 of 2 modules of ['mine']"]


RENAMED = """
from dataclasses import replace
from attnfuzz.kernels.gpu.catalogue import GPU_BACKENDS

MINE = replace(next(each for each in GPU_BACKENDS if each.name == "batch_decode"), name="mine")
"""


def test_a_users_backend_has_compiled_geometries_alone_if_they_are_asked_for(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variables = {BUILT: "1", "ATTNFUZZ_CACHE": str(tmp_path), ARCH_LIST: "9.0a"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # The stage of these tests began without them.
    mine = write(f"import os\nos.environ.update({variables!r})\n{RENAMED}")
    without = resolve(mine)
    assert lacks_modules(without)
    with pytest.raises(BadInput, match="no module is compiled for"):
        compiled_backends([mine], lambda _: None)
    library = tmp_path / "library.so"
    library.touch()
    built = Built(library=str(library), base=build_record.workspace_base())
    build_record.add("9.0a", {"batch decode bfloat16, head dim 64": built})
    few = rehearsal.rehearse(BackendSource(mine))
    assert not lacks_modules(few)
    assert 0 < len(few.capability.buckets) < len(without.capability.buckets)


def test_a_stand_in_answers_as_the_backend_does(write: Write) -> None:
    real = SDPA_BACKENDS[0]
    stand_in = resolve(
        write("from attnfuzz.kernels.libraries.torch_sdpa import SDPA_BACKENDS\nMINE = SDPA_BACKENDS[0]")
    )
    assert stand_in is not real
    assert (stand_in.name, stand_in.capability, stand_in.contract) == (real.name, real.capability, real.contract)
    assert [stand_in.noise(dtype) for dtype in real.capability.dtypes] == [
        real.noise(dtype) for dtype in real.capability.dtypes
    ]
    assert stand_in.ops.keys() == real.ops.keys()
    assert stand_in.missing() == real.missing()
    assert stand_in.noise(DType.BFLOAT16) == real.noise(DType.BFLOAT16)


def test_this_process_runs_no_function_of_a_user(write: Write) -> None:
    stand_in = resolve(write(GOOD))
    assert stand_in.ops == resolve(write(GOOD)).ops
    with pytest.raises(RuntimeError, match="attend is a user's function: only workers run it"):
        stand_in.ops["attend"].function()


def test_a_relative_path_is_that_of_the_folder_that_a_process_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, function in (("one", "attend"), ("other", "paged")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(GOOD.replace("attend", function))
        monkeypatch.chdir(tmp_path / folder)
        assert resolve("mine.py:MINE").name == function


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to(path), "can't be read: Too many levels of symbolic links"),
        (lambda path: path.mkdir(), "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    ],
)
def test_a_path_that_is_no_regular_file_is_not_opened(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    make(tmp_path / "mine.py")
    with pytest.raises(BackendFileError, match=words):
        resolve(f"{tmp_path}/mine.py:MINE")


@pytest.mark.parametrize(("name", "words"), [("a\0b.py:MINE", "null byte"), (f"{'a' * 5000}.py:MINE", "too long")])
def test_an_impossible_file_name_is_reported(name: str, words: str) -> None:
    with pytest.raises(BackendFileError, match=words):
        resolve(name)
