"""Fields of a capability and a contract are checked where they are given."""

from typing import Any

import pytest
import torch

from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode
from attnfuzz.reference.checked_fields import did_you_mean
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel


@pytest.mark.parametrize(
    ("given", "converted"),
    [
        ({"dtypes": (torch.bfloat16, torch.float16)}, (DType.BFLOAT16, DType.FLOAT16)),
        ({"dtypes": [torch.float32, "float16"]}, (DType.FLOAT32, DType.FLOAT16)),
        ({"modes": ("decode", Mode.EXTEND)}, (Mode.DECODE, Mode.EXTEND)),
        ({"sinks_dtype": torch.bfloat16}, DType.BFLOAT16),
        ({"head_dims": [64]}, (64,)),
    ],
)
def test_a_value_of_torch_a_string_or_a_list_is_converted(given: dict[str, Any], converted: object) -> None:
    assert getattr(Capability(**given), *given) == converted
    assert Contract(lse="e").lse is LseBase.E  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dtypes": (torch.int8,)}, r"dtypes is \(torch.int8,\): give a tuple of .*bfloat16, float16"),
        ({"magnitudes": ("huge",)}, r"magnitudes is \('huge',\): give a tuple of plain, large, tiny, mixed"),
        ({"modes": "decode"}, "modes is 'decode': give a tuple of decode, "),
        ({"device": "gpu"}, "device is 'gpu': give cpu, cuda"),
        ({"page_sizes": 16}, r"page_sizes is 16: give a tuple of integers, such as \(16,\)"),
        ({"dtypes": torch.bfloat16}, r"dtypes is torch.bfloat16: give a tuple of .*, such as \(torch.bfloat16,\)"),
        ({"windows": 1}, "windows is 1: give True or False"),
        ({"max_head_dim": "wide"}, "max_head_dim is 'wide': give an integer"),
        ({"buckets": (1,)}, r"buckets is \(1,\): give a tuple of Bucket"),
        ({"empty_kv": "no"}, "empty_kv is 'no': give True or False or None"),
    ],
)
def test_a_wrong_value_is_an_error_with_its_field_and_the_values(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=f"^Capability: {words}"):
        Capability(**given)


def test_digits_of_an_enum_are_quoted() -> None:
    with pytest.raises(TypeError, match="lse is 2: give '2', 'e' or None"):
        Contract(lse=2)  # type: ignore[arg-type]


def test_a_noise_model_of_another_dtype_lists_those_that_it_has() -> None:
    with pytest.raises(ValueError, match=r"rounding to 'bf16' is not known: give one of torch.float32, "):
        NoiseModel.rounded_probabilities("bf16")  # type: ignore[arg-type]


def test_a_misspelt_field_has_a_hint() -> None:
    with pytest.raises(TypeError) as caught:
        Capability(head_dim=64)  # type: ignore[call-arg]
    assert "did you mean head_dims" in did_you_mean(caught.value, (Capability, Bucket))
    of_another = TypeError("Unexpected keyword argument 'num_heads'")
    assert did_you_mean(of_another, (Capability, Bucket)) == " (did you mean heads of Bucket?)"
    assert did_you_mean(TypeError("another"), (Capability,)) == ""
