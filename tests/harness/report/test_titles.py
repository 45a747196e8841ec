"""A title tells what a kernel does, with which features, and where; the worst failures come first."""

import pytest
from msgspec.structs import replace

from attnfuzz.harness.report.titles import Severity, severity, slug, title
from attnfuzz.harness.verdict.failures import Access, Kind, Observation
from attnfuzz.reference.mistake import Mistake


def seen(kind: Kind, place: str = "out", message: str = "", **facts: object) -> Observation:
    return replace(Observation(kind=kind, place=place, message=message), **facts)


READ = seen(
    Kind.ILLEGAL_ACCESS,
    "cum_seq_lens_q",
    "read at cum_seq_lens_q: 0 bytes past the end (killed by SIGSEGV)",
    access=Access("read", {"cum_seq_lens_q": 20}),
)


def test_the_title_of_a_fault_names_tensor_and_side() -> None:
    assert title(READ, ("padding",), ["fa2_paged"], ["decode", "extend", "verify"]) == (
        "reads past cum_seq_lens_q with padding (fa2_paged, 3 modes)"
    )
    before = replace(
        READ, message="write at q: 16 bytes before the start", place="q", access=Access("write", {"q": -16})
    )
    assert title(before, (), [], []) == "writes before q"
    assert title(replace(READ, place="null pointer", access=None), (), [], []) == "accesses a null pointer"


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_has_a_title(kind: Kind) -> None:
    assert title(seen(kind), (), ["mine"], ["decode"]).endswith(" (mine, decode)")


@pytest.mark.parametrize("mistake", Mistake)
def test_each_explanation_has_a_title(mistake: Mistake) -> None:
    assert title(seen(Kind.OUTPUT_MISMATCH, mistakes=(mistake,)), (), [], []) != "computes a wrong output"


def test_a_title_names_the_features_that_say_most() -> None:
    wrong = seen(Kind.OUTPUT_MISMATCH)
    assert title(wrong, ("several keys", "sinks", "values"), [], []) == "computes a wrong output with sinks"
    assert title(wrong, ("several keys",), [], []) == "computes a wrong output with several keys"
    assert title(wrong, ("several pages", "several keys"), [], []) == "computes a wrong output with several pages"
    assert title(wrong, ("values",), [], []) == "computes a wrong output"
    # Keys outside of the window imply a window, and the explanation a sink.
    needs = ("keys outside of the window", "window")
    assert title(wrong, needs, [], []) == "computes a wrong output with keys outside of the window"
    sink = replace(wrong, mistakes=(Mistake.SINK,))
    assert title(sink, ("padding", "sinks"), [], []) == "leaves out or repeats sinks with padding"


def test_a_long_title_counts_features_and_backends() -> None:
    needs = ("padding", "replay", "sinks", "soft cap")
    named = title(seen(Kind.HANG), needs, ["a", "b", "c", "d"], ["decode"])
    assert named == "hangs with padding, replay and 2 other features (a, b and 2 other backends, decode)"


def test_a_slug_is_a_safe_part_of_a_file_name() -> None:
    assert slug("reads past ../q with NaN (mine/yours)") == "reads-past-q-with-nan"
    assert len(slug("word " * 100)) <= 60


def test_writes_outside_come_first_and_exceptions_last() -> None:
    kinds = [Kind.CANARY_OVERWRITTEN, Kind.ILLEGAL_ACCESS, Kind.HANG, Kind.WORKER_DIED, Kind.NOT_FINITE]
    assert [severity(seen(kind)) for kind in kinds] == list(Severity)[:5]
    written = seen(Kind.ILLEGAL_ACCESS, access=Access("write", {}))
    assert severity(written) is Severity.WRITES_OUTSIDE
    assert severity(seen(Kind.OUTPUT_MISMATCH, margin=2e3)) is Severity.WRONG
    assert severity(seen(Kind.OUTPUT_MISMATCH, margin=1.2)) is Severity.SMALL_ERROR
    assert severity(seen(Kind.RAISED)) is Severity.OTHER
