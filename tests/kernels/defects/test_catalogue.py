"""The catalogue of planted defects: enough, of every class, each with a name and a source; and pairs of them."""

import inspect
import re
from collections import Counter

import pytest
from msgspec.structs import replace
from small_cases import HEADS, run, step

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.cache_writes.native import NATIVE_WRITERS, NativeWriter
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name, pair, planted
from attnfuzz.kernels.defects.defect import AttentionDefect, BugClass, Layer, WriteDefect
from attnfuzz.kernels.trtllm.backends import TRTLLM_BACKENDS, TrtllmBackend
from attnfuzz.reference.case import Case, Mode, Scales

CORRECT = {backend.name: backend for backend in TRTLLM_BACKENDS}
WRITERS = {writer.name: writer for writer in NATIVE_WRITERS}
SOURCE = re.compile(r"(PR|RFC|issue) #\d+|arXiv:\d{4}\.\d{5}|docstring|README|csrc/")

ATTENTION, WRITES = (
    [defect for defect in DEFECTS if isinstance(defect, kind)] for kind in (AttentionDefect, WriteDefect)
)


def test_there_are_sixty_at_least() -> None:
    assert len(DEFECTS) >= 60


def test_there_are_thirty_of_writes_at_least_and_every_native_writer_has_some() -> None:
    assert len(WRITES) >= 30
    assert {defect.backend for defect in WRITES} == set(WRITERS)


def test_names_are_unique() -> None:
    assert [name for name, times in Counter(defect.name for defect in DEFECTS).items() if times > 1] == []


def test_every_class_of_bug_is_planted() -> None:
    assert {defect.bug_class for defect in DEFECTS} == set(BugClass)


def test_every_layer_has_a_defect() -> None:
    assert {defect.layer for defect in DEFECTS} == set(Layer)


def test_a_name_can_be_part_of_a_backends_name_and_of_a_files() -> None:
    assert [each.name for each in DEFECTS if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", each.name)] == []


def test_a_source_is_a_report_or_a_publication() -> None:
    assert [each.name for each in DEFECTS if not SOURCE.search(each.source)] == []


def test_a_title_is_one_line() -> None:
    assert [each.name for each in DEFECTS if not each.title or "\n" in each.title] == []


def test_a_defect_differs_from_its_correct_backend_and_supports_the_same_but_for_dtypes() -> None:
    for defect in ATTENTION:
        correct, defective = CORRECT[defect.backend], planted()[backend_name(defect)]
        assert defective.name == backend_name(defect)
        assert isinstance(defective, TrtllmBackend)
        assert (defective.session, defective.table) != (correct.session, correct.table), defect.name
        assert replace(defective.capability, dtypes=correct.capability.dtypes) == correct.capability, defect.name
        assert defective.contract == correct.contract, defect.name


def test_a_defective_writer_differs_from_its_correct_one_and_takes_the_same_arguments() -> None:
    for defect in WRITES:
        correct, defective = WRITERS[defect.backend], planted()[backend_name(defect)]
        assert defective.name == backend_name(defect)
        assert isinstance(defective, NativeWriter)
        assert (defective.session, defective.function) != (correct.session, correct.function), defect.name
        assert inspect.signature(defective.function) == inspect.signature(correct.function), defect.name
        assert defective.capability == correct.capability, defect.name


IN_PLACE = "trtllm_mha+query_scaled_in_place"
CASE = Case(
    backend=IN_PLACE,
    geometry=replace(HEADS, window_left=2, sinks=True),
    steps=(step(Mode.TARGET_VERIFY, (2, 9), stride=2),),
    scales=Scales(softmax=0.37),
)


@pytest.mark.parametrize("other", ["sink_missing_from_lse", "window_dropped_in_verify", "result_left_in_query"])
def test_a_pair_fails_in_both_ways(other: str) -> None:
    name = f"{IN_PLACE}+{other}"
    assert pair(name) is not None
    alone = {each.kind for each in run(CASE, f"trtllm_mha+{other}").failures}
    both = {each.kind for each in run(CASE, name).failures}
    assert alone
    assert both >= {Kind.INPUT_MUTATED}
    assert both >= alone or Kind.INPUT_MUTATED in alone


def test_defects_in_one_part_of_a_session_are_no_pair() -> None:
    assert pair("trtllm_mha+query_scaled_in_place+no_such_defect") is None
