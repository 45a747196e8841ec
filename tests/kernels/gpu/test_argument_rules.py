"""The rules of FlashInfer's arguments name what the installed release has, and are those of the page."""

import inspect
from importlib.metadata import version
from typing import Any

import pytest
from packaging.version import Version

from attnfuzz.harness.backends.registry import builtin
from attnfuzz.kernels.arguments.form_tables import AT_LAUNCH, PLACED, reaches
from attnfuzz.kernels.gpu import argument_rules as rules
from attnfuzz.kernels.gpu import function_argument_rules as functions
from attnfuzz.kernels.gpu.flashinfer_op import method_parameters
from attnfuzz.reference.arguments import ArgumentForm, ArgumentStanding, Rules
from attnfuzz.reference.capability import Capability

F = ArgumentForm
NAMES: frozenset[str] = frozenset().union(
    *(placed.names for placed in PLACED.values()),
    *(launched.names for launched in AT_LAUNCH.values()),
    {"out", "lse", "enable_pdl"},
)
OPTIONS = {
    F.OUT_RETURNED: ("out",),
    F.LSE_RETURNED: ("lse",),
    F.LSE_BASE_E: ("lse_base",),
    F.LSE_LAYOUT: ("lse_layout",),
    F.SCALE_DEFAULT: ("sm_scale",),
    F.K_SCALE_DEFAULT: ("k_scale",),
    F.K_SCALE_TENSOR: ("k_scale",),
    F.V_SCALE_DEFAULT: ("v_scale",),
    F.V_SCALE_TENSOR: ("v_scale",),
    F.WINDOW_DEFAULT: ("window_left",),
    F.WINDOW_AT_RUN: ("window_left",),
    F.SOFT_CAP_DEFAULT: ("logits_soft_cap",),
    F.SOFT_CAP_NEGATIVE: ("logits_soft_cap",),
    F.DTYPES_BY_NAME: ("q_data_type", "kv_data_type"),
    F.OUT_DTYPE_GIVEN: ("o_data_type",),
    F.KEY_LENGTHS_GIVEN: ("seq_lens",),
    F.BLOCKING: ("non_blocking",),
    F.SPLIT_DISABLED: ("disable_split_kv",),
    F.SPLIT_OF_A_PAGE: ("fixed_split_size",),
    F.DEPENDENT_LAUNCH: ("enable_pdl",),
    F.NO_DEPENDENT_LAUNCH: ("enable_pdl",),
    F.LENGTH_AWARE: ("length_aware_schedule",),
}


@pytest.mark.parametrize(
    ("wrapper", "of"),
    [
        ("prefill.BatchPrefillWithPagedKVCacheWrapper", rules.PAGED_PREFILL),
        ("prefill.BatchPrefillWithPagedKVCacheWrapper", rules.FA3_PAGED_PREFILL),
        ("prefill.BatchPrefillWithRaggedKVCacheWrapper", rules.FA2_RAGGED_PREFILL),
        ("decode.BatchDecodeWithPagedKVCacheWrapper", rules.BATCH_DECODE),
        ("decode.BatchDecodeWithPagedKVCacheWrapper", rules.TENSOR_CORE_DECODE),
        ("decode.CUDAGraphBatchDecodeWithPagedKVCacheWrapper", rules.GRAPH_DECODE),
        ("attention.BatchAttentionWithAttentionSinkWrapper", rules.FA2_SINKS),
        ("attention.BatchDecodeWithAttentionSinkWrapper", rules.FA2_SINKS_DECODE),
        ("attention.BatchAttention", rules.HOLISTIC),
        ("cascade.MultiLevelCascadeAttentionWrapper", rules.CASCADE_LEVELS),
        ("sparse.BlockSparseAttentionWrapper", rules.BLOCK_SPARSE),
        ("sparse.VariableBlockSparseAttentionWrapper", rules.VARIABLE_SPARSE),
    ],
)
def test_a_promised_form_of_a_wrapper_is_an_argument_with_a_default(wrapper: str, of: Rules) -> None:
    module, name = wrapper.split(".")
    found: Any = getattr(pytest.importorskip(f"flashinfer.{module}"), name, None)
    if found is None:
        pytest.skip("the installed release lacks it")
    plan = method_parameters(found, "_plan_impl" if hasattr(found, "_plan_impl") else "plan")
    run = method_parameters(found, "run")
    assert plan is not None
    assert run is not None
    for rule in of:
        if rule.standing is ArgumentStanding.PROMISED:
            arguments = {argument: plan.get(argument) or run.get(argument) for argument in OPTIONS[rule.form]}
            assert all(each and each.default is not each.empty for each in arguments.values()), (rule, arguments)


OF_FUNCTIONS = {
    **OPTIONS,
    F.SCALE_TENSOR: ("bmm1_scale",),
    F.K_SCALE_DEFAULT: ("k_scale",),
    F.OUT_DTYPE_GIVEN: ("o_dtype", "o_data_type"),
    F.V_SCALE_TENSOR: ("v_scale", "bmm2_scale"),
    F.OFFSETS_IN_TOKENS: ("batch_offsets_units",),
}


@pytest.mark.parametrize(
    ("names", "of"),
    [
        (("prefill.single_prefill_with_kv_cache",), functions.SINGLE_PREFILL),
        (("decode.single_decode_with_kv_cache",), functions.SINGLE_DECODE),
        (("decode.single_decode_with_kv_cache",), functions.TENSOR_CORE_DECODE),
        (("cudnn.cudnn_batch_decode_with_kv_cache",), functions.CUDNN_DECODE),
        (("cudnn.cudnn_batch_prefill_with_kv_cache",), functions.CUDNN_PREFILL),
        (
            ("decode.trtllm_batch_decode_with_kv_cache", "prefill.trtllm_batch_context_with_kv_cache"),
            functions.TRTLLM_MHA,
        ),
        (
            ("decode.trtllm_batch_decode_with_kv_cache", "prefill.trtllm_fmha_v2_prefill"),
            functions.HOPPER_TRTLLM_MHA,
        ),
        (
            ("mla.trtllm_batch_decode_with_kv_cache_mla", "prefill.trtllm_ragged_attention_deepseek"),
            functions.TRTLLM_MLA,
        ),
    ],
)
def test_a_promised_form_of_a_function_is_an_argument(names: tuple[str, ...], of: Rules) -> None:
    pytest.importorskip("flashinfer")
    older = Version(version("flashinfer-python")) < Version("0.7.4")
    for function in names:
        module, name = function.split(".")
        parameters = inspect.signature(getattr(pytest.importorskip(f"flashinfer.{module}"), name)).parameters
        for rule in of:
            # An option of decode, since 0.7.4.
            absent = rule.form is F.LENGTH_AWARE and (older or "q_len_per_req" not in parameters)
            if rule.standing is ArgumentStanding.PROMISED and not absent:
                assert not parameters.keys().isdisjoint(OF_FUNCTIONS[rule.form]), (function, rule)


def test_backends_as_served_are_called_plainly() -> None:
    served = [backend for name, backend in builtin().items() if name.endswith("_as_served")]
    assert served
    plain = {"arguments", "earlier_uses", "edges"}
    assert not any(getattr(backend.capability, field) for backend in served for field in plain)


def test_options_that_a_session_passes_are_promised() -> None:
    # A refused step is made again by the launcher, plainly: it can't take these out.
    by_session = {form for form in F if not any(reaches(form, {name}) for name in NAMES)}
    # The session that makes such a call takes its refusal.
    by_session.remove(F.CALL_WITHOUT_QUERIES)
    assert {F.SPLIT_DISABLED, F.LSE_BASE_E, F.DTYPES_BY_NAME} <= by_session
    for backend in builtin().values():
        for rule in backend.capability.arguments if isinstance(backend.capability, Capability) else ():
            assert rule.form not in by_session or rule.standing is ArgumentStanding.PROMISED, (backend.name, rule)
