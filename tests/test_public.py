"""The public interface: `attnfuzz.__all__`, and the page that documents it."""

import inspect
import re
from pathlib import Path

import pytest

import attnfuzz

REFERENCE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"

public_names = pytest.mark.parametrize("name", attnfuzz.__all__)


@public_names
def test_each_name_can_be_imported_and_has_a_docstring_of_its_own(name: str) -> None:
    found = getattr(attnfuzz, name)
    assert found.__name__ == name
    assert inspect.cleandoc(found.__doc__ or "")
    # A dataclass without a docstring gets its signature for one.
    assert not found.__doc__.startswith(f"{name}(")


def test_the_reference_documents_each_name_once_and_no_other() -> None:
    documented = re.findall(r"^::: attnfuzz\.(\w+)$", REFERENCE.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(attnfuzz.__all__)


def test_names_are_listed_before_they_are_imported() -> None:
    assert set(attnfuzz.__all__) <= set(dir(attnfuzz))


def test_any_other_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'attnfuzz' has no attribute 'Capabilities'"):
        attnfuzz.Capabilities  # noqa: B018
