"""The examples in docs/examples do what the documentation says."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from forked_python import forked_processes
from readable_calls import readable_calls
from small_cases import HEADS, step

from attnfuzz.harness.dumps.case_of_call import make_case
from attnfuzz.harness.dumps.understood import breaches_of
from attnfuzz.harness.dumps.wrapper_calls import as_function
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.building.library_cache import cache_folder
from attnfuzz.reference.case import Case, Mask, Mode, Scales
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
EXAMPLE = EXAMPLES / "my_subtle_backend.py"


@pytest.fixture(scope="module", autouse=True)
def _processes() -> Iterator[None]:
    """Scripts, jobs and nurseries are forked off a process that has imported torch."""
    with forked_processes():
        yield


@pytest.mark.slow
def test_the_subtle_error_is_found_and_explained() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 30
    case = Case(
        backend=f"{EXAMPLE}:SUBTLE",
        geometry=msgspec.structs.replace(
            HEADS, head_dim_qk=40, head_dim_vo=40, kv_layout=KvLayout.NHD, dtype=DType.FLOAT32, kv_dtype=DType.FLOAT32
        ),
        steps=(step(Mode.DECODE, *[(1, 3)] * 20),),
        scales=Scales(softmax=1.7),
    )
    with Runner() as runner:
        (failure,) = runner.explained(case, runner.verdict(case)).failures
    assert "\nas if the logits were multiplied by 1.0027" in failure.message


@pytest.mark.slow
def test_the_forgotten_mask_of_a_tree_is_found_and_explained() -> None:
    two = step(Mode.TARGET_VERIFY, (4, 12), (4, 9), stride=4)
    case = Case(
        backend=f"{EXAMPLES / 'my_trees.py'}:TREES",
        geometry=msgspec.structs.replace(HEADS, kv_layout=KvLayout.NHD),
        steps=(two,),
        mask=Mask.TREE,
    )
    with Runner() as runner:
        assert runner.verdict(msgspec.structs.replace(case, mask=Mask.CAUSAL)).failures == ()
        (failure,) = runner.explained(case, runner.verdict(case)).failures
    assert "as if the mask were ignored: the row sees the keys up to its own" in failure.message


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="dumps a call of FlashInfer")
@pytest.mark.parametrize(
    ("example", "broken", "place"),
    [
        ("crashing_call.py", "batch_size is 12", "cum_seq_lens_q"),
        ("crashing_wrapper.py", "block_tables[1, 2] is page 6", "kv_cache"),
    ],
)
def test_the_crashing_calls_dump_themselves_and_fail_as_the_guide_says(
    example: str, broken: str, place: str, tmp_path: Path
) -> None:
    settings = {
        "FLASHINFER_LOGLEVEL": "10",
        "FLASHINFER_LOGDEST": str(tmp_path / "log"),
        "FLASHINFER_DUMP_DIR": str(tmp_path / "dump"),
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path),
    }
    # A process, since FlashInfer reads its settings when it is imported.
    ran = subprocess.run(
        [sys.executable, EXAMPLES / example],
        env=os.environ | settings,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.stderr.endswith("RuntimeError: the kernel's turn\n")
    calls = readable_calls(tmp_path / "dump")
    call = as_function(calls, calls[-1])
    assert [breach.text[: len(broken)] for breach in breaches_of(call)] == [broken]
    with Runner() as runner:
        (failure,) = runner.verdict(make_case(call)).failures
    assert (failure.kind, failure.place) == (Kind.ILLEGAL_ACCESS, place)


class Chat(BaseHTTPRequestHandler):
    """Keeps what is posted."""

    posted: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.mark.slow
def test_a_campaign_from_python_posts_its_findings(tmp_path: Path) -> None:
    """A process of its own, as users run it: a campaign's jobs must find their way without the command line."""
    script = tmp_path / "chat_handler.py"
    # A trial minimizes nothing, which takes most of the time of such a campaign.
    script.write_text((EXAMPLES / "chat_handler.py").read_text().replace("examples=50", "examples=12, trial=0.0"))
    with HTTPServer(("127.0.0.1", 0), Chat) as chat:
        threading.Thread(target=chat.serve_forever, daemon=True).start()
        ran = subprocess.run(
            [sys.executable, script, f"http://127.0.0.1:{chat.server_port}/"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        chat.shutdown()
    assert ran.stdout.splitlines()[-1].endswith("findings, in attnfuzz-home")
    assert any(text.startswith("IllegalAccess in trtllm_mha@21649-before: attnfuzz replay ") for text in Chat.posted)
    assert (tmp_path / "attnfuzz-home" / "findings").is_dir()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example repository as if pip had installed it, for processes that are started."""
    repository = EXAMPLES / "paged_attention"
    groups = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in groups.items()
    )
    information = tmp_path / "site-packages" / "paged_attention-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: paged-attention\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("".join(lines))
    # A test's own home folder has no compiled kernels.
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(cache_folder()))
    folders = [str(information.parent), str(repository / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
    return repository


@pytest.mark.slow
def test_the_example_repository_passes_its_own_tests(installed: Path, pytester: pytest.Pytester) -> None:
    """A process of its own: what other tests of the plugin ran has looked for entry points in this one."""
    few = ("--attn-examples", "4", "--attn-seed", "1", "--hypothesis-seed", "1")
    script = pytester.path / "run_pytest.py"
    script.write_text("import sys, pytest; sys.exit(pytest.main())")
    options = ("-c", installed / "pyproject.toml", "-p", "no:cacheprovider", *few)
    pytester.run(sys.executable, script, installed, *options).assert_outcomes(passed=2)
