"""`attnfuzz export`: scripts for a CPU and for FlashInfer, and the text of an issue."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Attnfuzz
from dump_maker import Dumper
from harness_cases import chunked_case, decode_case
from wrapper_lives import PREFILL, PREFILL_PLAN, life

from attnfuzz.reference import case_file
from attnfuzz.reference.case import Outputs

pytestmark = pytest.mark.slow

MALFORMED = str(Path(__file__).parents[1] / "short_seq_lens.json")


def test_a_script_is_written_for_a_cpu_unless_asked_otherwise(attnfuzz: Attnfuzz) -> None:
    native = attnfuzz("export", MALFORMED)
    assert native.code == 0
    assert attnfuzz("export", MALFORMED, "--for", "native").out == native.out
    assert "import flashinfer" not in native.out
    flashinfer = attnfuzz("export", MALFORMED, "--for", "flashinfer", "-o", "gpu.py")
    assert (flashinfer.code, flashinfer.out) == (0, "")
    assert flashinfer.err.endswith("\nWrote gpu.py.\n")
    assert "import flashinfer" in Path("gpu.py").read_text()
    ast.parse(native.out)


def test_an_issue_has_the_calls_and_the_script_that_fits(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("export", MALFORMED, "--issue")
    assert ran.code == 0
    assert ran.out.startswith("# reads past seq\\_lens (trtllm\\_mha)\n")
    assert "read at seq_lens: 0 bytes past the end (element 2 of 2)" in ran.out
    assert 'seq_lens = memory("seq_lens", torch.int32, [4, 3])' in ran.out
    # The source of the kernels is too long for an issue.
    assert "its first lines list its requirements" in ran.out
    assert len(ran.out) < 65_536
    script = ran.out.split("<summary>repro.py</summary>\n\n```python\n")[1].split("\n```\n")[0]
    assert script + "\n" == attnfuzz("export", MALFORMED, "--for", "flashinfer").out
    only_native = attnfuzz("export", MALFORMED, "--issue", "--for", "native")
    assert "The stand-alone script is too long for this text" in only_native.out


def test_an_issue_of_a_case_made_of_steps_has_its_message_and_its_calls(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    case_file.save(tmp_path / "chunked.json", chunked_case("trtllm_mla@22688-before", Outputs.STALE))
    ran = attnfuzz("export", "chunked.json", "--issue", "-o", "issue.md")
    assert ran.code == 0
    text = Path("issue.md").read_text()
    assert "request 2 (q_len 2, kv_len 2)" in text.split("## ")[0]
    assert "step 0    chunked_prefill:" in text
    assert "trtllm_ragged_attention_deepseek(" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--issue"], "passing.json can't be exported: it passes, so there is nothing to report"),
        (["--for", "flashinfer"], "FlashInfer has no scaled_dot_product_attention: export it without --for"),
        (["--for", "triton"], "'triton' is not one of 'native', 'flashinfer'"),
    ],
)
def test_a_case_that_cannot_be_exported_is_reported_in_one_line(
    attnfuzz: Attnfuzz, tmp_path: Path, arguments: list[str], words: str
) -> None:
    case_file.save(tmp_path / "passing.json", decode_case("torch_sdpa", 6, padded=1))
    ran = attnfuzz("export", "passing.json", *arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert words in " ".join(ran.err.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the calls would be run")
def test_a_dump_of_a_wrapper_becomes_a_script_of_its_life_without_a_gpu(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    dumper = Dumper(tmp_path / "dump", module="flashinfer.prefill")
    plan = {**PREFILL_PLAN, "num_qo_heads": 4, "num_kv_heads": 2}
    for call, status in zip(life(PREFILL, plan, rows=6), (True, True, False), strict=True):
        given = {name: _plain(value) for name, value in call.arguments.items()}
        dumper.call(call.function, self_id=9, completed=status, **given)
    ran = attnfuzz("import", "dump", "--backend", "fa2_paged", "-o", "case.json")
    assert ran.code == 0, ran.err
    assert "3 calls on" in ran.out
    assert "Its caller broke no known precondition." in ran.out
    ran = attnfuzz("export", "case.json", "-o", "repro.py")
    assert ran.code == 0, ran.err
    assert "The calls were not run: fa2_paged can't run here" in ran.err
    text = Path("repro.py").read_text()
    ast.parse(text)
    assert text.startswith('"""No failure seen, in calls that fa2_paged made.')
    assert text.index("wrapper_1 = BatchPrefillWithPagedKVCacheWrapper(") < text.index("wrapper_1.plan(")
    assert text.index("wrapper_1.plan(") < text.index("wrapper_1.run(")
    assert "return compare(" in text


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, tuple) else getattr(value, "load", lambda: value)()
