"""The vocabulary of mistakes, as findings and logs keep it."""

import msgspec
import pytest

from attnfuzz.reference.mistake import Mistake

OLD = "told"
"""The first word of those of the caller before 0.1.0."""


@pytest.mark.parametrize("mistake", [each for each in Mistake if each.of_caller])
def test_mistakes_of_the_caller_in_old_logs_are_read(mistake: Mistake) -> None:
    old = f"{OLD} {mistake.value.removeprefix('given ')}"
    assert msgspec.json.decode(msgspec.json.encode(old), type=Mistake) is mistake


@pytest.mark.parametrize("text", [f"{OLD} nothing", f"{OLD} no keys", "given", ""])
def test_any_other_value_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(text), type=Mistake)


def test_the_kernel_is_not_to_blame_for_other_arguments() -> None:
    assert {each.name for each in Mistake if each.of_caller} == {
        n for n in Mistake.__members__ if n.startswith("GIVEN_")
    }
