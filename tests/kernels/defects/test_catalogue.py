"""The catalogue of planted defects: enough, of every class and in every layer, each with a name and a source."""

import re
from collections import Counter

import pytest
from msgspec.structs import replace

from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name, planted
from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.trtllm.backends import TRTLLM_BACKENDS, TrtllmBackend

CORRECT = {backend.name: backend for backend in TRTLLM_BACKENDS}
SOURCE = re.compile(r"(PR|RFC|issue) #\d+|arXiv:\d{4}\.\d{5}|docstring")

each_defect = pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)


def test_there_are_sixty_at_least() -> None:
    assert len(DEFECTS) >= 60


def test_names_are_unique() -> None:
    assert [name for name, times in Counter(defect.name for defect in DEFECTS).items() if times > 1] == []


def test_every_class_of_bug_is_planted() -> None:
    assert {defect.bug_class for defect in DEFECTS} == set(BugClass)


def test_every_layer_has_a_defect() -> None:
    assert {defect.layer for defect in DEFECTS} == set(Layer)


@each_defect
def test_a_name_can_be_part_of_a_backends_name_and_of_a_files(defect: Defect) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", defect.name)


@each_defect
def test_a_source_is_a_report_or_a_publication(defect: Defect) -> None:
    assert SOURCE.search(defect.source)


@each_defect
def test_a_title_is_one_line(defect: Defect) -> None:
    assert defect.title
    assert "\n" not in defect.title


@each_defect
def test_a_defect_differs_from_its_correct_backend_and_supports_the_same_but_for_dtypes(defect: Defect) -> None:
    correct, defective = CORRECT[defect.backend], planted()[backend_name(defect)]
    assert defective.name == backend_name(defect)
    assert isinstance(defective, TrtllmBackend)
    assert (defective.session, defective.table) != (correct.session, correct.table)
    assert replace(defective.capability, dtypes=correct.capability.dtypes) == correct.capability
    assert defective.contract == correct.contract
