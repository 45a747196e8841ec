"""Backends by name: built in, installed, or in a user's file."""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import fake_nvml
import pytest

from attnfuzz.harness.backends import registry
from attnfuzz.harness.backends.load import ENTRY_POINTS, BackendFileError
from attnfuzz.harness.backends.registry import (
    UnknownBackend,
    WrongDevice,
    as_file_name,
    family,
    fixed,
    is_file,
    names,
    on_device,
    resolve,
)
from attnfuzz.kernels.cuda import visible
from attnfuzz.kernels.gpu.variants import name_as_served
from attnfuzz.kernels.interface.engine import EngineError
from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.reference.device import Device

pytestmark = pytest.mark.slow

Write = Callable[..., str]

GOOD = """
from attnfuzz.kernels.functions.function_backend import FunctionBackend

def attend(**arguments): ...

MINE = FunctionBackend(attend)
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a backend file and gives its path; what importing it adds to sys.path is taken back."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(text: str, name: str = "mine.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    return written


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes an installed package offer an object as a backend of that name."""

    def make(name: str, value: str) -> None:
        offered = EntryPoints([EntryPoint(name, value, ENTRY_POINTS)])
        monkeypatch.setattr(registry, "entry_points", offered.select)

    return make


@pytest.mark.parametrize("name", names())
def test_every_known_name_resolves_to_a_backend_of_that_name(name: str) -> None:
    assert resolve(name).name == name
    assert resolve(name) is resolve(name)


def test_revisions_belong_to_a_fixed_backend() -> None:
    for name in ("trtllm_mha@21649-before", "trtllm_mha@24566", "trtllm_mla@21987-before", "trtllm_mla@22688-before"):
        assert name in names()
        assert fixed(name) in {"trtllm_mha", "trtllm_mla"}
    assert fixed("torch_sdpa") == "torch_sdpa"


@pytest.mark.parametrize("whole", ["xqa", "fmha_v2", "hopper:trtllm_mha"])
def test_a_backend_as_served_is_no_revision_and_supports_less(whole: str) -> None:
    name = name_as_served(whole)
    assert fixed(name) == name
    served, all_of_it = resolve(name).capability, resolve(whole).capability
    narrower = {field for field in served.__struct_fields__ if getattr(served, field) != getattr(all_of_it, field)}
    assert "kv_scales" in narrower
    assert narrower <= {
        "kv_scales",
        "empty_kv",
        "kv_shorter_than_q",
        "query_views",
        "arguments",
        "edges",
        "earlier_uses",
    }


def test_names_with_an_architecture_are_names_like_others() -> None:
    assert fixed("hopper:trtllm_mha@21649-before") == "hopper:trtllm_mha"
    assert not is_file("hopper:trtllm_mha")
    assert as_file_name("hopper:trtllm_mha@21649-before") == "hopper_trtllm_mha@21649-before"


@pytest.mark.parametrize(
    ("chip", "family"), [(fake_nvml.H200, "hopper"), (fake_nvml.B200, "blackwell")], ids=["H200", "B200"]
)
@pytest.mark.parametrize("name", ["trtllm_mha", "trtllm_mha@24566", "trtllm_mla"])
def test_on_a_gpu_a_backend_is_that_of_its_architecture(
    name: str, chip: fake_nvml.Chip, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.install(monkeypatch, [chip])
    assert on_device(name, Device.CUDA) == f"{family}:{name}"
    assert on_device(f"{family}:{name}", Device.CUDA) == f"{family}:{name}"
    assert on_device(f"{family}:{name}", Device.CPU) == name


@pytest.mark.parametrize("release", ["sglang==0.5.9", "sglang==0.5.23"])
@pytest.mark.parametrize("kind", ["trtllm_mha", "trtllm_mla"])
def test_backends_of_a_release_are_named_by_it_and_need_no_network(release: str, kind: str) -> None:
    name = f"{release}:{kind}"
    assert resolve(name).name == name
    assert resolve(name) is resolve(name)
    assert name not in names()


@pytest.mark.parametrize("name", ["sglang==0.5.9:trtllm_mha", "sglang@/home/me/a+b@c/python:trtllm_mha"])
def test_a_release_is_no_revision_and_no_file(name: str) -> None:
    assert fixed(name) == name
    assert not is_file(name)
    assert family(name) == "sglang:trtllm_mha"


def test_revisions_are_of_one_family() -> None:
    assert family("trtllm_mha@24566") == family("trtllm_mha+k_scale_twice") == "trtllm_mha"


def test_a_release_is_not_taken_to_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible, "missing", lambda *_: "needs a GPU of Hopper")
    with pytest.raises(WrongDevice, match=r"sglang==0.5.9:trtllm_mha can't run on cuda here: needs a GPU of Hopper"):
        on_device("sglang==0.5.9:trtllm_mha", Device.CUDA)


def test_a_release_on_a_gpu_goes_by_another_name_which_names_it_on_a_cpu_as_well() -> None:
    assert family("hopper:sglang==0.5.9:trtllm_mha") == "hopper:sglang:trtllm_mha"
    assert on_device("hopper:sglang==0.5.9:trtllm_mha", Device.CUDA) == "hopper:sglang==0.5.9:trtllm_mha"
    assert on_device("hopper:sglang==0.5.9:trtllm_mha", Device.CPU) == "sglang==0.5.9:trtllm_mha"


@pytest.mark.parametrize("name", ["sglang", "sglang==0.5.9", "sglang==0.5.8:trtllm_mha", "sglang:trtllm_mha"])
def test_a_wrong_name_of_a_release_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(EngineError, match=r"^'sglang") as raised:
        resolve(name)
    assert "\n" not in str(raised.value)


def test_a_tree_that_is_none_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="holds no source of SGLang"):
        resolve(f"sglang@{tmp_path}:trtllm_mha")


def test_names_of_files_say_the_release_and_stay_short() -> None:
    assert as_file_name("sglang==0.5.10.post1:trtllm_mha") == "sglang_0.5.10.post1_trtllm_mha"
    deep = [f"sglang@/home/{'me/' * 100}{tree}/python:trtllm_mha" for tree in ("one", "two")]
    short = [as_file_name(name) for name in deep]
    assert short[0].endswith("_one_python_trtllm_mha")
    assert max(map(len, short)) < 120
    alike = [as_file_name(name.replace("/python", "/python" * 20)) for name in deep]
    assert alike[0] != alike[1]


@pytest.mark.parametrize("name", ["trtllm_mha", "xqa", "hopper:trtllm_mha", "torch_sdpa"])
def test_without_a_device_a_name_stays(name: str) -> None:
    assert on_device(name, None) == name


@pytest.mark.parametrize(("name", "device"), [("xqa", Device.CUDA), ("torch_sdpa@175063", Device.CPU)])
def test_a_backend_of_one_device_stays_there(name: str, device: Device) -> None:
    assert on_device(name, device) == name


def test_a_users_backend_stays_where_it_is(write: Write) -> None:
    name = f"{write(GOOD)}:MINE"
    assert on_device(name, Device.CPU) == name
    with pytest.raises(WrongDevice, match="no counterpart on cuda"):
        on_device(name, Device.CUDA)


@pytest.mark.parametrize(
    ("name", "device", "words"),
    [
        ("torch_sdpa", Device.CUDA, "torch_sdpa has no counterpart on cuda: see attnfuzz backends --device cuda"),
        ("xqa", Device.CPU, "xqa has no counterpart on cpu"),
        ("trtllm_mha+k_scale_twice", Device.CUDA, "has no counterpart on cuda"),
        ("trtllm_mha", Device.CUDA, r"hopper:trtllm_mha and blackwell:trtllm_mha on a GPU, .* NVIDIA L4 \(SM 8\.9\)"),
    ],
)
def test_a_backend_without_a_counterpart_is_refused(
    name: str, device: Device, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.install(monkeypatch, [fake_nvml.L4])
    with pytest.raises(WrongDevice, match=words):
        on_device(name, device)


def test_without_a_gpu_its_backends_have_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch)
    with pytest.raises(WrongDevice, match="there is none here: name one of them, or no device"):
        on_device("trtllm_mha", Device.CUDA)


def test_a_misspelt_name_gets_the_closest_ones() -> None:
    with pytest.raises(
        UnknownBackend,
        match=r"^unknown backend 'torch_spda': did you mean torch_sdpa or torch_sdpa@175063\?$",
    ):
        resolve("torch_spda")
    with pytest.raises(UnknownBackend, match="did you mean trtllm_mla or trtllm_mha"):
        resolve("trtllm_mah")


def test_a_name_unlike_all_others_gets_the_command_that_lists_them() -> None:
    with pytest.raises(UnknownBackend, match=r"'\?\?\?': name one of attnfuzz backends, or FILE\.py:NAME$"):
        resolve("???")


def test_files_are_reported_from_names() -> None:
    assert is_file("mine.py:MINE")
    assert is_file("some@folder/mine.py:MINE")
    assert not is_file("trtllm_mha")
    assert fixed("some@folder/mine.py:MINE") == "some@folder/mine.py:MINE"


def test_a_backend_comes_from_a_file(write: Write) -> None:
    assert resolve(f"{write(GOOD)}:MINE").name == "attend"


def test_a_class_is_made_without_arguments(write: Write) -> None:
    text = f"{GOOD}\nclass Mine(FunctionBackend):\n    def __init__(self): super().__init__(attend)\n"
    assert resolve(f"{write(text)}:Mine").name == "attend"


def test_a_file_may_import_its_neighbours(write: Write) -> None:
    write("def attend(**arguments): ...", "a/neighbour_of_mine.py")
    text = GOOD.replace("def attend(**arguments): ...", "from neighbour_of_mine import attend")
    assert resolve(f"{write(text, 'a/mine.py')}:MINE").name == "attend"


def test_files_of_one_name_in_two_folders_are_two_modules(write: Write) -> None:
    first = resolve(f"{write(GOOD, 'a/mine.py')}:MINE")
    second = resolve(f"{write(GOOD.replace('attend', 'other'), 'b/mine.py')}:MINE")
    assert (first.name, second.name) == ("attend", "other")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("import surely_not_installed", "MINE", "fails to import: ModuleNotFoundError: No module named"),
        ("import attnfuzz.kernels.moved", "MINE", "No module .* .import public names from attnfuzz itself"),
        ("def broken(", "MINE", "fails to import: SyntaxError"),
        (GOOD, "OTHER", "has no OTHER: its backends are MINE$"),
        ("", "MINE", "has no MINE: its backends are none$"),
        ("MINE = 3", "MINE", r"MINE is not a backend, it lacks name, .*open: make it an attnfuzz.Backend"),
        ("MINE = []", "MINE", "MINE is a list: give each of its backends a name of its own$"),
        ("def MINE(): ...", "MINE", "MINE is not a backend, .* make one of a function with attnfuzz.FunctionBackend"),
    ],
)
def test_an_error_in_a_file_is_reported_in_one_line(write: Write, text: str, name: str, message: str) -> None:
    with pytest.raises(BackendFileError, match=message) as raised:
        resolve(f"{write(text)}:{name}")
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(BackendFileError, match=r"no_such\.py does not exist in /.+: run .+ FOLDER/no_such\.py:NAME"):
        resolve("no_such.py:MINE")


@pytest.mark.parametrize(("text", "name"), [(GOOD, "MINE"), ("", "NAME"), (f"{GOOD}\nOTHER = MyBackend()", "OTHER")])
def test_a_file_without_a_name_gets_that_of_a_backend_in_it(write: Write, text: str, name: str) -> None:
    file = write(text)
    with pytest.raises(UnknownBackend, match=f"is a file: name a backend in it, such as {file}:{name}$"):
        resolve(str(file))


def test_a_file_that_was_wrong_is_read_again(write: Write) -> None:
    with pytest.raises(BackendFileError):
        resolve(f"{write('def broken(', 'once_wrong.py')}:MINE")
    assert not [name for name in sys.modules if "once_wrong" in name]
    assert resolve(f"{write(GOOD, 'once_wrong.py')}:MINE").name == "attend"


def test_installed_packages_offer_backends(offer: Callable[[str, str], None]) -> None:
    offer("sdpa_again", "attnfuzz.kernels.libraries.torch_sdpa:SdpaBackend")
    assert "sdpa_again" in names()
    assert resolve("sdpa_again").name == "torch_sdpa"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("surely_not_installed:MINE", "backend offered_wrong: its entry point .* fails: ModuleNotFoundError"),
        ("math:pi", "offered_wrong is not a backend"),
    ],
)
def test_an_entry_point_that_fails_is_named(offer: Callable[[str, str], None], value: str, message: str) -> None:
    offer("offered_wrong", value)
    with pytest.raises(BackendFileError, match=message):
        resolve("offered_wrong")
