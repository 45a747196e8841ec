"""A layer is the release's own, with the window and the scales that a model has."""

import math

import pytest
from harness_cases import GEOMETRY, LATENT
from loaded_tree import LoadedTree, served, served_case
from msgspec.structs import replace

from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.reference.case import Mode, Request, Scales, Step
from attnfuzz.reference.dtypes import DType

_STEP = Step(mode=Mode.DECODE, requests=(Request(0, 1, 5),), padded_tokens=1, tokens_per_request=1)


def test_a_layer_is_of_the_releases_own_class_and_scales_by_its_head_dim(loaded: LoadedTree) -> None:
    layer = served(loaded, served_case(GEOMETRY, _STEP, scales=Scales(softmax=3.0))).layer
    assert type(layer).__module__ == "sglang.srt.layers.radix_attention"
    assert layer.scaling == 3 / math.sqrt(8)


def test_latents_are_scaled_by_the_head_dim_of_the_keys_that_they_stand_for(loaded: LoadedTree) -> None:
    server = served(loaded, served_case(LATENT, _STEP))
    assert server.layer.scaling == server.prefill_layer.scaling == 1 / math.sqrt(16)
    assert (server.layer.head_dim, server.layer.v_head_dim, server.layer.tp_k_head_num) == (24, 16, 1)
    prefill = server.prefill_layer
    assert (prefill.head_dim, prefill.v_head_dim, prefill.tp_k_head_num) == (16, 16, 4)


def test_a_checkpoint_without_scales_leaves_none(loaded: LoadedTree) -> None:
    layer = served(loaded, served_case(GEOMETRY, _STEP)).layer
    assert (layer.k_scale, layer.k_scale_float, layer.v_scale, layer.v_scale_float) == (None, None, None, None)


@pytest.mark.parametrize("kv_dtype", [DType.BFLOAT16, DType.FLOAT8_E4M3])
def test_a_checkpoint_has_scales_as_tensors_and_as_numbers(loaded: LoadedTree, kv_dtype: DType) -> None:
    geometry = replace(GEOMETRY, kv_dtype=kv_dtype)
    layer = served(loaded, served_case(geometry, _STEP, scales=Scales(k=0.5, v=2.0))).layer
    assert (float(layer.k_scale), layer.k_scale_float) == (0.5, 0.5)
    assert (float(layer.v_scale), layer.v_scale_float) == (2.0, 2.0)
    assert layer.k_scale.shape == ()


def test_a_window_is_counted_as_flashinfer_counts_it(loaded: LoadedTree) -> None:
    server = served(loaded, served_case(replace(GEOMETRY, window_left=7), _STEP))
    assert server.layer.sliding_window_size == server.model_runner.sliding_window_size == 7


def test_a_window_of_one_key_is_none_to_sglang_and_unsupported(loaded: LoadedTree) -> None:
    with pytest.raises(Unsupported, match="window of one key"):
        served(loaded, served_case(replace(GEOMETRY, window_left=0), _STEP))


def test_chunks_of_attention_that_cut_a_page_are_unsupported(loaded: LoadedTree) -> None:
    chunk = GEOMETRY.page_size + 1
    with pytest.raises(Unsupported, match="whole pages"):
        served(loaded, served_case(replace(GEOMETRY, attention_chunk=chunk), _STEP))
