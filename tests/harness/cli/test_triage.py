"""`attnfuzz triage` as users see it."""

from pathlib import Path

import msgspec
import pytest
from command_line import Attnfuzz
from harness_cases import decode_case

from attnfuzz.harness.triage import Blame, Triage
from attnfuzz.reference import case_file

CASE = Path(__file__).parents[1] / "short_seq_lens.json"


@pytest.mark.slow
def test_a_failing_case_is_explained_within_80_columns(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("triage", str(CASE), "--repeat", "2")
    assert ran.code == 1
    assert ran.out.startswith("The caller is at fault: the code that made the call")
    assert "- batch_size is 3" in ran.out
    assert "fails, IllegalAccess at seq_lens" in ran.out
    *shown, blank, smaller, script = ran.out.splitlines()
    assert max(map(len, shown)) <= 80
    assert (blank, smaller, script) == ("", f"minimize: attnfuzz shrink {CASE}", f"script:   attnfuzz export {CASE}")


@pytest.mark.slow
def test_as_json_it_is_the_whole_triage(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("triage", str(CASE), "--repeat", "2", "--json", "-")
    assert ran.code == 1
    found = msgspec.json.decode(ran.out, type=Triage)
    assert found.fault is Blame.CALLER
    assert found.variants


@pytest.mark.slow
def test_a_case_that_passes_in_every_way_exits_with_0(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    case_file.save(tmp_path / "case.json", decode_case("trtllm_mha"))
    ran = attnfuzz("triage", "case.json", "--repeat", "2")
    assert ran.code == 0
    assert ran.out.startswith("Nothing fails")
    assert "shrink" not in ran.out


def test_another_backend_can_be_asked(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    case_file.save(tmp_path / "case.json", decode_case("trtllm_mha"))
    ran = attnfuzz("triage", "case.json", "--repeat", "2", "--backend", "torch_sdpa")
    assert ran.code == 2
    assert "torch_sdpa does not support padded batches" in " ".join(ran.err.split())


@pytest.mark.slow
def test_calls_for_another_machine_are_decided_by_their_arguments(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    case = case_file.load(CASE).having(backend="blackwell:trtllm_mha")
    case_file.save(tmp_path / "case.json", case)
    ran = attnfuzz("triage", "case.json")
    assert ran.code == 1
    assert "blackwell:trtllm_mha can't run here: needs a GPU of Blackwell" in ran.err
    assert ran.out.startswith("The caller is at fault: the code that made the call")
    assert "varied" not in ran.out
