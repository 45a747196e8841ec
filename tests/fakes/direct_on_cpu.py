"""Stands for FlashInfer's single functions: each call is bound to the installed signature, and answered on the CPU.

What a real function checks of its arguments, or only documents, is asserted here. The answers are the reference's, to
the keys that the metadata names; only the merges are native kernels.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from bound_call import bind
from plain_attention import attend_one, attend_paged, to_base2
from wrapper_backends import OnCpu, on_cpu_as

from attnfuzz.kernels.gpu.direct import cudnn, fmha_v2, mla, states, torch_attention, xqa
from attnfuzz.kernels.gpu.direct.mla import MlaWrapper, mla_ops
from attnfuzz.kernels.gpu.direct.single import SINGLE_BACKENDS, SINGLE_DECODE, SINGLE_PREFILL, SingleSession
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.states import MERGE_STATE_IN_PLACE
from attnfuzz.kernels.gpu.wrappers import cascade, holistic, pod, sparse
from attnfuzz.kernels.gpu.wrappers.holistic import HolisticSession, HolisticWrapper, holistic_ops
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.libraries.torch_sdpa import attend_into
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.reference.attention import attend
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.problem import Answer, Problem


def _lengths(cumulative: torch.Tensor) -> tuple[int, ...]:
    return tuple(last - first for first, last in pairwise(cumulative.tolist()))


def _xqa(**arguments: Any) -> torch.Tensor:
    taken = bind("flashinfer.decode", "xqa_batch_decode_with_kv_cache", arguments)
    query, lens, ragged, longest = (taken[name] for name in ("query", "seq_lens", "q_cu_seq_lens", "q_len_per_req"))
    assert lens.dtype == torch.uint32
    q_lens = (longest,) * len(lens) if ragged is None else _lengths(ragged)
    assert sum(q_lens) == len(query)
    assert max(q_lens, default=0) <= longest
    if longest > 1:
        rows = (len(lens), longest) if ragged is None else (len(query),)
        assert taken["mask"].shape == (*rows, 2)
        among = _among(taken["mask"].reshape(-1, 2), q_lens)
    else:
        among = [torch.ones(1, 1, dtype=torch.bool)] * len(lens)
        assert ragged is None
    assert not taken["workspace_buffer"][: xqa.SEMAPHORES].any()
    masks = tuple(map(_over_keys, among, lens.view(torch.int32).tolist()))
    lengths = lens.view(torch.int32)
    answer = _paged(taken, taken["query"], taken["kv_cache"], taken["kv_layout"], q_lens, lengths, masks)
    return _written(taken, query, answer)


def _among(words: torch.Tensor, q_lens: tuple[int, ...]) -> list[torch.Tensor]:
    """The masks among draft tokens bool [q_len, q_len], by their bits in 16-bit words."""
    bits = (words.to(torch.int32).unsqueeze(-1) >> torch.arange(16) & 1).bool().flatten(1)
    return [own[:, : len(own)] for own in bits.split(q_lens)]


def _over_keys(among: torch.Tensor, kv_len: int) -> torch.Tensor:
    """The mask of a request: all see its prefix, and a draft token's key is as many before the last."""
    q_len = len(among)
    prefix = torch.ones(q_len, max(kv_len - q_len, 0), dtype=torch.bool)
    return torch.cat((prefix, among[:, max(q_len - kv_len, 0) :]), dim=1)


def _full(q_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.ones(*lengths, dtype=torch.bool) for lengths in zip(q_lens, kv_lens, strict=True))


def _paged(
    taken: dict[str, Any],
    query: torch.Tensor,
    cache: Any,
    layout: str,
    q_lens: tuple[int, ...],
    lens: torch.Tensor,
    masks: tuple[torch.Tensor, ...] | None = None,
) -> Answer:
    """The answer for pages, a pool or a pair of pools."""
    key, value = cache.unbind(dim=1) if isinstance(cache, torch.Tensor) else cache
    return attend_paged(
        query,
        key,
        value,
        taken["block_tables"],
        layout=KvLayout(layout),
        q_lens=q_lens,
        kv_lens=tuple(lens.flatten().tolist()),
        bmm1_scale=float(taken["scale"] if "scale" in taken else taken["bmm1_scale"]),
        bmm2_scale=float(taken.get("bmm2_scale", 1.0)),
        window_left=taken.get("window_left", -1),
        sinks=taken.get("sinks"),
        soft_cap=taken.get("logits_soft_cap_scale") or 0.0,
        masks=masks,
    )


def _fmha_v2(**arguments: Any) -> torch.Tensor:
    return _written(arguments, arguments["qkv"][0], _fmha_v2_answer(**arguments))


def _fmha_v2_with_lse(*, lse: torch.Tensor, **arguments: Any) -> torch.Tensor:
    answer = _fmha_v2_answer(**arguments)
    lse.copy_(answer.lse)
    return _written(arguments, arguments["qkv"][0], answer)


def _written(arguments: dict[str, Any], query: torch.Tensor, answer: Answer) -> torch.Tensor:
    """The output, which is allocated if it is not there."""
    out: torch.Tensor = arguments.get("out", torch.empty_like(answer.out, dtype=query.dtype))
    return out.copy_(answer.out)


def _fmha_v2_answer(**arguments: Any) -> Answer:
    """Rows of metadata as the launcher and its Python wrapper take them."""
    taken = bind("flashinfer.prefill", "trtllm_fmha_v2_prefill", arguments)
    (query, *others), layout = taken["qkv"], taken["input_layout"]
    q_lens, kv_lens = _lengths(taken["cum_seq_lens_q"]), tuple(taken["seq_lens"].tolist())
    assert _lengths(taken["cum_seq_lens_kv"]) == kv_lens
    assert len(q_lens) == taken["batch_size"]
    assert max((*kv_lens, taken["max_q_len"])) <= taken["max_kv_len"]
    assert max(q_lens, default=0) <= taken["max_q_len"]
    full = taken["mask_mode"] == "padding"
    window_left = taken.get("window_left", -1)
    assert full or taken["mask_mode"] == ("causal" if window_left < 0 else "sliding_window")
    assert not full or window_left < 0
    masks = _full(q_lens, kv_lens) if full else None
    assert taken["workspace_buffer"].numel() >= 16
    if layout.startswith("Q_PAGED_KV"):
        (pool,) = others
        assert (pool.ndim, pool.shape[1]) == (5, 2)
        assert len(taken["block_tables"]) == taken["batch_size"]
        if taken["block_tables"].dtype != torch.int32:
            raise ValueError("block_tables must be int32")
        return _paged(taken, query, pool, layout.removeprefix("Q_PAGED_KV_"), q_lens, taken["seq_lens"], masks)
    key, value = others[0].unbind(dim=1) if layout == "CONTIGUOUS_Q_KV" else others
    assert layout == "CONTIGUOUS_Q_KV" or not taken["logits_soft_cap_scale"]
    given = {name: taken[name] for name in ("sinks", "window_left") if name in taken}
    scales = taken["bmm1_scale"], taken["bmm2_scale"]
    return attend(Problem(query, key, value, q_lens, kv_lens, *scales, causal=not full, masks=masks, **given))


def _cudnn_decode(**arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    taken = bind("flashinfer.cudnn", "cudnn_batch_decode_with_kv_cache", arguments)
    query, lens, stride = taken["q"], taken["actual_seq_lens_kv"], taken["q_len_per_req"]
    assert lens.shape == (len(query) // stride, 1, 1, 1)
    assert (lens >= stride).all()
    if not all(taken[name].is_contiguous() for name in ("out", "lse") if name in taken):
        raise ValueError("out and lse must be contiguous")
    if taken["sinks"] is not None and taken["sinks"].dtype != torch.float32:
        raise ValueError("sinks must be a float32 tensor")
    answer = _paged(taken, query, (taken["k_cache"], taken["v_cache"]), "HND", (stride,) * len(lens), lens)
    return _write_both(taken, answer)


def _cudnn_prefill(**arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    taken = bind("flashinfer.cudnn", "cudnn_batch_prefill_with_kv_cache", arguments)
    query, lse = taken["q"], taken["lse"]
    out = taken.setdefault("out", torch.empty_like(query))
    assert taken.get("o_data_type", query.dtype) == query.dtype
    q_lens = tuple(taken["actual_seq_lens_q"].flatten().tolist())
    in_tokens = taken.get("batch_offsets_units") == "tokens"
    for name, tensor in (("q", query), ("o", out), ("stats", lse)):
        row = tensor[0].numel() if len(tensor) and not in_tokens else 1
        assert _lengths(taken[f"batch_offsets_{name}"]) == tuple(q_len * row for q_len in q_lens)
    assert query.is_contiguous()
    assert lse.shape == query.shape[:2]
    assert max(q_lens, default=0) <= taken["max_token_per_sequence"]
    lens = taken["actual_seq_lens_kv"]
    window_left = taken.pop("window_left", None)
    taken["window_left"] = -1 if window_left is None else window_left
    if taken.get("sinks") is not None and taken["sinks"].dtype != torch.float32:
        raise ValueError("sinks must be a float32 tensor")
    masks = None if taken["causal"] else _full(q_lens, tuple(lens.flatten().tolist()))
    answer = _paged(taken, query, (taken["k_cache"], taken["v_cache"]), "HND", q_lens, lens, masks)
    lse_in_base_2 = taken.get("lse_base", "log2") == "log2"
    _write_both(taken, answer)
    if not lse_in_base_2:
        lse.copy_(answer.lse)
    return out, lse


def _write_both(taken: dict[str, Any], answer: Answer) -> tuple[torch.Tensor, torch.Tensor]:
    """Write the answer to the outputs, which are allocated if they are not there."""
    out = taken.get("out", torch.empty_like(answer.out, dtype=taken["q"].dtype))
    lse = taken.get("lse", torch.empty_like(answer.lse, dtype=torch.float32))
    out.copy_(answer.out)
    lse.copy_(to_base2(answer.lse))
    return out, lse


def _check_dense(*states: torch.Tensor) -> None:
    if not all(state.is_contiguous() for state in states):
        raise ValueError("a state must be contiguous")


def _merge_in_place(**arguments: Any) -> None:
    taken = bind("flashinfer.cascade", "merge_state_in_place", arguments)
    _check_dense(*(taken[name] for name in ("v", "s", "v_other", "s_other")))
    lse = taken["s"].float()
    taken["s_other"] = taken["s_other"].float()
    mask = taken.get("mask")
    taken["mask"] = None if mask is None else mask.contiguous()
    merged = torch.ones(len(lse), dtype=torch.bool) if mask is None else mask.bool()
    # Unlike FlashInfer's, the native kernel's stand-in keeps NaN out of a merge if its weight is 0.
    taken["v"].masked_fill_((lse.isneginf() & merged[:, None])[..., None], 0.0)
    taken["v_other"] = taken["v_other"].masked_fill(taken["s_other"].isneginf()[..., None], 0.0)
    NATIVE.merge_state_in_place.function(**{**taken, "s": lse})
    taken["s"].copy_(lse)


def _merge_state(*, out: torch.Tensor, lse: torch.Tensor, **states: torch.Tensor) -> None:
    taken = bind("flashinfer.cascade", "merge_state", states)
    _check_dense(*taken.values())
    out.copy_(taken["v_a"])
    lse.copy_(taken["s_a"])
    _merge_in_place(v=out, s=lse, v_other=taken["v_b"], s_other=taken["s_b"])


def _merge_states(*, out: torch.Tensor, lse: torch.Tensor, **states: torch.Tensor) -> None:
    taken = bind("flashinfer.cascade", "merge_states", states)
    _check_dense(*taken.values())
    weights = torch.softmax(taken["s"].double() * torch.tensor(2.0).log(), dim=1).nan_to_num(0.0)
    values = taken["v"].masked_fill(taken["s"].isneginf().unsqueeze(3), 0.0)
    out.copy_((weights.unsqueeze(3) * values).sum(dim=1))
    lse.copy_(to_base2(torch.logsumexp(taken["s"].double() * torch.tensor(2.0).log(), dim=1)))


def _single_prefill(*, out: torch.Tensor, lse: torch.Tensor, **arguments: Any) -> None:
    taken = bind("flashinfer.prefill", "single_prefill_with_kv_cache", arguments | {"return_lse": True})
    assert taken["causal"]
    assert taken.get("o_dtype", taken["q"].dtype) == taken["q"].dtype
    _single(taken, taken["q"], out, lse)


def _single_decode(*, out: torch.Tensor, lse: torch.Tensor, **arguments: Any) -> None:
    taken = bind("flashinfer.decode", "single_decode_with_kv_cache", arguments | {"return_lse": True})
    if not taken["use_tensor_cores"] and not all(taken[name].is_contiguous() for name in ("q", "k", "v")):
        raise ValueError("q, k and v must be contiguous")
    _single(taken, taken["q"].unsqueeze(0), out.unsqueeze(0), lse.unsqueeze(0))


def _single(taken: dict[str, Any], query: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> None:
    key, value = (taken[name].transpose(0, 1) if taken["kv_layout"] == "HND" else taken[name] for name in ("k", "v"))
    scale = float(taken.get("sm_scale", query.shape[2] ** -0.5) * taken.get("k_scale", 1.0))
    cap, window = max(taken.get("logits_soft_cap", 0.0), 0.0), taken.get("window_left", -1)
    v_scale = float(taken.get("v_scale", 1.0))
    answer = attend_one(query, key, value, scale, bmm2_scale=v_scale, window_left=window, soft_cap=cap)
    out.copy_(answer.out)
    lse.copy_(to_base2(answer.lse))


class _FakeMla(MlaWrapper):
    module = "fake_mla"


class _MlaSession(mla.MlaWrapperSession):
    wrapper_type = _FakeMla


def _sdpa(*, lower_right: bool = False, **arguments: Any) -> None:
    """Any kernel of torch's. What aligns the last query to the last key is a mask here."""
    if lower_right:
        assert arguments["query"].shape[2] <= arguments["key"].shape[2]
        q_len, kv_len = arguments["query"].shape[2], arguments["key"].shape[2]
        arguments["attn_mask"] = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)
    attend_into(**arguments)


_STAND_INS: dict[Op, Callable[..., Any]] = {
    xqa.XQA_OP: _xqa,
    fmha_v2.FMHA_V2_OP: _fmha_v2,
    fmha_v2.FMHA_V2_LSE_OP: _fmha_v2_with_lse,
    cudnn.DECODE_OP: _cudnn_decode,
    cudnn.PREFILL_OP: _cudnn_prefill,
    MERGE_STATE_IN_PLACE: _merge_in_place,
    states.MERGE_STATE: _merge_state,
    states.MERGE_STATES: _merge_states,
    SINGLE_PREFILL: _single_prefill,
    SINGLE_DECODE: _single_decode,
    torch_attention.FLASH: _sdpa,
    torch_attention.EFFICIENT: _sdpa,
    torch_attention.CUDNN: _sdpa,
    torch_attention.FLEX: torch_attention.attend_flexibly,
}


def on_cpu(backend: GpuBackend) -> OnCpu:
    """The backend with its ops replaced by what answers for them."""
    session: Any = backend.session
    if isinstance(session, partial) and session.func is SingleSession:
        (kind,) = session.args
        made: Any = partial(SingleSession, replace(kind, op=replace(kind.op, function=_STAND_INS[kind.op])))
    elif isinstance(session, partial):
        return on_cpu_as(backend, partial(_MlaSession, **session.keywords), kernels=tuple(mla_ops("fake_mla").values()))
    else:
        ops = {name: op for name in dir(session) if isinstance(op := getattr(session, name), Op)}
        replaced = {name: replace(op, function=_STAND_INS[op]) for name, op in ops.items()}
        made = type(session.__name__, (session,), replaced)
    return on_cpu_as(backend, made)


XQA = on_cpu(xqa.XQA)
XQA_AS_SERVED = on_cpu(xqa.XQA_AS_SERVED)
XQA_FP8 = on_cpu(xqa.XQA_FP8)
FMHA_V2 = on_cpu(fmha_v2.FMHA_V2)
FMHA_V2_AS_SERVED = on_cpu(fmha_v2.FMHA_V2_AS_SERVED)
FMHA_V2_NHD = on_cpu(fmha_v2.FMHA_V2_NHD)
FMHA_V2_PACKED = on_cpu(fmha_v2.FMHA_V2_PACKED)
FMHA_V2_LSE = on_cpu(fmha_v2.FMHA_V2_LSE)
MLA_FA2 = on_cpu(mla.MLA_FA2)
MLA_FA3 = on_cpu(mla.MLA_FA3)
CASCADE_MERGE = on_cpu(states.CASCADE_MERGE)
CUDNN_DECODE = on_cpu(cudnn.CUDNN_DECODE)
CUDNN_PREFILL = on_cpu(cudnn.CUDNN_PREFILL)
SDPA_FLASH = on_cpu(torch_attention.SDPA_FLASH)
SDPA_EFFICIENT = on_cpu(torch_attention.SDPA_EFFICIENT)
SDPA_CUDNN = on_cpu(torch_attention.SDPA_CUDNN)
FLEX_ATTENTION = on_cpu(torch_attention.FLEX_ATTENTION)


class _FakeHolistic(HolisticWrapper):
    module = "fake_planned"


class _HolisticSession(HolisticSession):
    holistic_type = _FakeHolistic


def planned_on_cpu(backend: GpuBackend) -> OnCpu:
    """A backend over a class that owns its integer workspace, with a fake one in its place."""
    session: Any = backend.session
    session, args, given = session.func, session.args, session.keywords
    if isinstance(session, partial):
        session, args, given = session.func, session.args + args, session.keywords | given
    if issubclass(session, cascade.PrefixSession):
        (kind,) = args
        args = (replace(kind, planned=replace(kind.planned, module="fake_planned")),)
        ops = args[0].planned.ops
    elif issubclass(session, HolisticSession):
        session, ops = _HolisticSession, tuple(holistic_ops("fake_planned").values())
    else:
        session = type(session.__name__, (session,), {"kind": replace(session.kind, module="fake_planned")})
        ops = (*session.kind.ops, *(op for op in backend.kernels if op.library is None))
    return on_cpu_as(backend, partial(session, *args, **given), kernels=ops)


(
    FA2_SINGLE_PREFILL,
    FA3_SINGLE_PREFILL,
    FA3_SINGLE_PREFILL_HND,
    SINGLE_DECODE_CUDA_CORES,
    SINGLE_DECODE_TENSOR_CORES,
) = map(on_cpu, SINGLE_BACKENDS)
BATCH_ATTENTION = planned_on_cpu(holistic.HOLISTIC)
POD, BATCH_POD = map(planned_on_cpu, pod.POD_BACKENDS)
CASCADE_LEVELS, CASCADE_LEVELS_WINDOW, SHARED_PREFIX_DECODE, SHARED_PREFIX_PREFILL = map(
    planned_on_cpu, cascade.CASCADE_BACKENDS
)
FA2_BLOCK_SPARSE, FA3_BLOCK_SPARSE, FA2_VARIABLE_SPARSE, FA3_VARIABLE_SPARSE = map(
    planned_on_cpu, sparse.SPARSE_BACKENDS
)
