"""Tables of what is stubbed and changed in which release."""

import pytest
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.releases.versions import span, stubbed_in
from attnfuzz.kernels.sglang.adaptations import CHANGES, STUBBED, Inert, changes_in


def test_a_range_begins_with_its_first_version_and_ends_before_its_last() -> None:
    versions = span("0.5.10", before="0.5.14")
    inside = [each for each in ("0.5.9", "0.5.10", "0.5.10.post1", "0.5.13", "0.5.14") if Version(each) in versions]
    assert inside == ["0.5.10", "0.5.10.post1", "0.5.13"]


def test_an_unknown_version_has_the_adaptations_of_the_newest_one() -> None:
    assert stubbed_in(Version("0.6.0"), STUBBED) == stubbed_in(Version("0.5.23"), STUBBED)
    assert changes_in(Version("0.5.24.dev3")) == changes_in(Version("0.5.23"))


def test_a_module_is_a_stub_only_from_the_release_that_imports_it() -> None:
    assert "torchvision" not in stubbed_in(Version("0.5.9"), STUBBED)
    assert "torchvision" in stubbed_in(Version("0.5.10"), STUBBED)


def test_each_row_says_the_line_that_it_was_read_from() -> None:
    sources = [*(row.source for row in STUBBED), *(row.source for row in CHANGES)]
    assert [source for source in sources if not source.rpartition(":")[2].isdigit()] == []


def test_a_wrapper_that_is_not_tested_is_planned_and_not_run() -> None:
    wrapper = Inert("a workspace", "NHD", backend="auto")
    wrapper.begin_forward()
    wrapper.update(None, spec_info=None)
    with pytest.raises(Unsupported, match="wrapper class of FlashInfer's"):
        wrapper.forward()
