"""Names of backends of SGLang's releases and source trees."""

from pathlib import Path

import pytest
from packaging.version import Version

from attnfuzz.kernels.releases.naming import BadName, Named
from attnfuzz.kernels.sglang.engine import ENGINE
from attnfuzz.kernels.sglang.project import SGLANG


def test_a_name_says_release_and_backend() -> None:
    named = Named.parse(SGLANG, "sglang==0.5.10.post1:trtllm_mla")
    assert (named.release, named.kind) == ("sglang==0.5.10.post1", "trtllm_mla")
    assert (named.version, named.tree) == (Version("0.5.10.post1"), None)
    assert str(named) == "sglang==0.5.10.post1:trtllm_mla"


@pytest.mark.parametrize("path", ["/home/me/sglang/python", "/odd/a==b", "/odd/c:d@e+f", "/odd/with space"])
def test_a_source_tree_is_named_by_its_path(path: str) -> None:
    named = Named.parse(SGLANG, f"sglang@{path}:trtllm_mha")
    assert (named.version, named.tree, named.kind) == (None, Path(path), "trtllm_mha")
    assert ENGINE.team(str(named)) == f"sglang@{path}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sglang", "is not a backend of SGLang: add :trtllm_mha or :trtllm_mla"),
        ("sglang==0.5.9", "is not a backend of SGLang"),
        (
            "sglang:trtllm_mha",
            r"does not say which SGLang: name a release as in sglang==0\.5\.9:trtllm_mha, or .*--sglang",
        ),
        ("sglang@python:trtllm_mla", r"does not say which SGLang: .* sglang:trtllm_mla and --sglang PATH"),
        ("sglang@:trtllm_mla", "does not say which SGLang"),
        ("sglang==0.5.9:fa9", "'fa9' is not a backend of SGLang that can be tested: trtllm_mha, trtllm_mla, "),
        ("sglang==newest:trtllm_mha", "'newest' is not a version"),
        ("sglang==:trtllm_mha", "'' is not a version"),
        ("sglang==0.5.10post1:trtllm_mha", r"write that version as 0\.5\.10\.post1"),
        ("sglang==0.5.8.post1:trtllm_mha", r"can be tested from 0\.5\.9 on"),
        ("sglang==0.5.9rc1:trtllm_mha", r"can be tested from 0\.5\.9 on"),
    ],
)
def test_the_error_in_a_name_is_reported_in_one_line(name: str, words: str) -> None:
    assert ENGINE.owns(name)
    with pytest.raises(BadName, match=words) as raised:
        Named.parse(SGLANG, name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name", ["trtllm_mha", "hopper:trtllm_mha", "sglang_of_mine", "mine.py:sglang", "trtllm_mha@24566"]
)
def test_other_names_are_left_alone(name: str) -> None:
    assert not ENGINE.owns(name)


def test_a_tree_is_named_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = f"sglang@{tmp_path.resolve()}/sglang:trtllm_mla"
    assert ENGINE.in_tree("sglang:trtllm_mla", Path("sglang")) == expected
    assert ENGINE.in_tree("sglang==0.5.9:trtllm_mla", Path("sglang")) == expected
    assert ENGINE.in_tree("sglang@/elsewhere:trtllm_mla", Path("sglang")) == expected


def test_a_tree_has_no_backends_but_sglangs(tmp_path: Path) -> None:
    with pytest.raises(BadName, match=r"'trtllm_mha' is not a backend of SGLang.*give sglang:trtllm_mha"):
        ENGINE.in_tree("trtllm_mha", tmp_path)


def test_without_a_name_a_tree_stands_for_all_that_it_has(tmp_path: Path) -> None:
    assert ENGINE.of_tree(tmp_path, ()) == (f"sglang@{tmp_path}:trtllm_mha", f"sglang@{tmp_path}:trtllm_mla")


def test_a_name_may_say_a_gpu(tmp_path: Path) -> None:
    named = Named.parse(SGLANG, "hopper:sglang==0.5.23:trtllm_mha")
    assert (named.release, named.kind, named.gpu) == ("sglang==0.5.23", "trtllm_mha", True)
    assert str(named) == "hopper:sglang==0.5.23:trtllm_mha"
    assert ENGINE.team(str(named)) == "sglang==0.5.23"
    assert ENGINE.of_tree(tmp_path, ("hopper:sglang:trtllm_mla",)) == (f"hopper:sglang@{tmp_path}:trtllm_mla",)


def test_only_names_without_a_release_become_those_of_the_tree(tmp_path: Path) -> None:
    named = ("trtllm_mha", "sglang==0.5.9:trtllm_mha", "sglang:trtllm_mha")
    assert ENGINE.of_tree(tmp_path, named) == (*named[:2], f"sglang@{tmp_path}:trtllm_mha")


def test_a_tree_that_nothing_is_asked_of_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadName, match="for sglang:trtllm_mha, which is not asked for"):
        ENGINE.of_tree(tmp_path, ("sglang==0.5.9:trtllm_mha",))
