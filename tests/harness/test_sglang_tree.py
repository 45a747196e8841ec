"""The general strategies on a source tree of a few lines that is built as SGLang 0.5.9 is."""

from pathlib import Path

import fake_sglang
import pytest
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, Caught, ShrinkBudget, Slice, SliceDone
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.workers.supervisor import Refused
from attnfuzz.reference.case import Case, KvView, Mode, Request, Step, Views
from attnfuzz.reference.geometry import Geometry

pytestmark = pytest.mark.slow

SMALL = Case(
    backend="trtllm_mha",
    geometry=Geometry(q_heads=2, kv_heads=1, head_dim_qk=64, head_dim_vo=64, page_size=16),
    steps=(
        Step(mode=Mode.DECODE, requests=(Request(slot=0, q_len=1, kv_len=40),), padded_tokens=1, tokens_per_request=1),
    ),
    views=Views(kv=KvView.TOKEN_MAJOR),
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_sglang.need_nothing(monkeypatch)
    return fake_sglang.copy_tree(tmp_path / "checkout")


def hunt(tree: Path, examples: int) -> tuple[SliceDone, list[Caught]]:
    name = f"sglang@{tree}:trtllm_mha"
    sent: list[AnyMessage] = []
    task = Slice(
        backend=name,
        index=0,
        seed=5,
        examples=examples,
        known=(),
        shrink=ShrinkBudget(runs=0),
        first_only=True,
    )
    with Runner([name]) as runner:
        done = Hunt(task, runner, sent.append, capability=resolve(name).capability).run(drawn_cases(name))
    return done, [message for message in sent if isinstance(message, Caught)]


def test_a_correct_tree_passes_drawn_cases(tree: Path) -> None:
    done, caught = hunt(tree, 8)
    assert not caught
    assert done.tally.searched >= 4
    # The tree is a small part of a release.
    assert all("sglang.srt.mem_cache.swa_memory_pool" in reason for reason in done.unsupported)


def test_the_mistake_of_a_tree_is_found_and_the_arguments_that_show_it_are_named(tree: Path) -> None:
    fake_sglang.plan_for_the_padded_batch(tree)
    _, caught = hunt(tree, 40)
    (first,) = caught
    kinds = {failure.kind for failure in first.verdict.failures}
    assert kinds & {Kind.ILLEGAL_ACCESS, Kind.CONTRACT_BROKEN}
    text = first.verdict.failures[0].message
    assert "batch_size is" in text
    # As the source says that a server comes to pad a batch that it has planned.
    assert "how a server reaches this step: " in text
    assert "eagle" in text
    assert first.fingerprint.backend == f"sglang@{tree}:trtllm_mha"


def test_two_trees_and_other_backends_run_side_by_side(tree: Path, tmp_path: Path) -> None:
    wrong = fake_sglang.copy_tree(tmp_path / "other")
    file = wrong / "python/sglang/srt/layers/attention/trtllm_mha_backend.py"
    file.write_text(file.read_text().replace('"bmm1_scale": layer.scaling', '"bmm1_scale": 2 * layer.scaling'))
    with Runner() as runner:
        assert not runner.verdict(SMALL).failures
        assert not runner.verdict(replace(SMALL, backend=f"sglang@{tree}:trtllm_mha")).failures
        (found, *_) = runner.verdict(replace(SMALL, backend=f"sglang@{wrong}:trtllm_mha")).failures
    assert found.kind is Kind.OUTPUT_MISMATCH
    assert "how a server reaches this step: " in found.message


def test_an_unanswered_question_ends_the_run_in_one_line(tree: Path) -> None:
    file = tree / "python/sglang/srt/layers/attention/trtllm_mha_backend.py"
    file.write_text(
        file.read_text().replace("self.planned: Metadata | None = None", "self.planned = model_runner.new_option")
    )
    name = f"sglang@{tree}:trtllm_mha"
    with Runner([name]) as runner, pytest.raises(Refused, match=r"model_runner\.new_option .*trtllm_mha_backend"):
        runner.verdict(replace(SMALL, backend=name))
