"""Calls are bound as the FlashInfer would that a release pins."""

import inspect
from pathlib import Path

import pytest
from packaging.version import Version

from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.native.unsupported import OWN
from attnfuzz.kernels.releases import signatures as module
from attnfuzz.kernels.releases.signatures import signatures
from attnfuzz.kernels.releases.stand_ins import ENTRY_POINTS

DECODE = "trtllm_batch_decode_with_kv_cache"


def test_each_version_has_its_own_parameters() -> None:
    before, after = (signatures(Version(version))[DECODE].parameters for version in ("0.6.3", "0.7.2"))
    assert "return_lse" not in before
    assert (after["return_lse"].default, before["q_len_per_req"].default) == (False, 1)
    assert list(before)[:4] == ["query", "kv_cache", "workspace_buffer", "block_tables"]


@pytest.mark.parametrize(
    ("asked", "given"),
    [("0.6.5", "0.6.3"), ("0.6.13rc1", "0.6.12"), ("9.0", "0.7.4"), ("0.1", "0.6.3"), (None, "0.7.4")],
)
def test_an_unknown_version_has_those_of_the_last_known_one_before_it(asked: str | None, given: str) -> None:
    assert signatures(None if asked is None else Version(asked)) == signatures(Version(given))


def test_an_argument_that_the_version_lacks_is_refused_in_its_own_words() -> None:
    arguments = dict.fromkeys(("query", "kv_cache", "workspace_buffer", "block_tables", "seq_lens", "max_seq_len"), 1)
    signature = signatures(Version("0.6.3"))[DECODE]
    assert signature.bind(**arguments).arguments == arguments
    with pytest.raises(TypeError, match="return_lse"):
        signature.bind(**arguments, return_lse=True)
    with pytest.raises(TypeError, match="max_seq_len"):
        signature.bind(1, 2, 3, 4, 5)


def test_a_parameter_that_has_to_be_named_and_has_no_default_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "signatures.json"
    file.write_text('{"9.9": {"attend": "query, *, scale, out=None"}}')
    monkeypatch.setattr(module, "_FILE", file)
    signature = signatures.__wrapped__(Version("9.9"))["attend"]
    assert signature.bind(1, scale=2).arguments == {"query": 1, "scale": 2}
    assert signature.parameters["out"].default is None
    with pytest.raises(TypeError, match="scale"):
        signature.bind(1)


@pytest.mark.parametrize("op", [op for op in NATIVE.ops() if op.name in ENTRY_POINTS], ids=lambda op: op.name)
def test_native_parameters_have_the_names_and_defaults_of_the_newest_version(op: "object") -> None:
    name, function = op.name, op.function  # type: ignore[attr-defined]
    named = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
    ours = [each for each in named if each.name not in OWN]
    theirs = signatures(None)[name].parameters
    assert {each.name for each in ours} <= set(theirs)
    assert all(each.default == theirs[each.name].default for each in ours if each.default is not each.empty)
