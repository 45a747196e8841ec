"""Refusals of a release are distinguished from its errors."""

from pathlib import Path

import fake_sglang
import pytest

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference.case import Case, KvView, Mode, Request, Step, Views
from attnfuzz.reference.geometry import Geometry

_GEOMETRY = Geometry(q_heads=2, kv_heads=1, head_dim_qk=64, head_dim_vo=64, page_size=16)
_DECODE = Step(mode=Mode.DECODE, requests=(Request(0, 1, 40),), padded_tokens=1, tokens_per_request=1)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_sglang.need_nothing(monkeypatch)
    return fake_sglang.copy_tree(tmp_path / "checkout")


@pytest.mark.slow
def test_a_value_error_is_a_rejection_where_the_release_raises_it_and_a_crash_where_python_does(tree: Path) -> None:
    file = tree / "python/sglang/srt/layers/attention/trtllm_mha_backend.py"
    planning = '        """Plan a batch."""\n'
    file.write_text(
        file.read_text().replace(
            planning,
            f'{planning}        if batch.batch_size == 1:\n            raise ValueError("no single request")\n'
            "        max([])\n",
        )
    )
    name = f"sglang@{tree}:trtllm_mha"
    two = Step(mode=Mode.DECODE, requests=(Request(0, 1, 40), Request(1, 1, 3)), padded_tokens=2, tokens_per_request=1)
    one, both = (
        Case(backend=name, geometry=_GEOMETRY, steps=(step,), views=Views(kv=KvView.TOKEN_MAJOR))
        for step in (_DECODE, two)
    )
    with Runner([name]) as runner:
        refused = runner.verdict(one)
        assert refused.unsupported is not None
        assert "the release says: no single request" in refused.unsupported
        (crash,) = runner.verdict(both).failures
    assert crash.kind is Kind.RAISED
    assert "max() " in crash.message
