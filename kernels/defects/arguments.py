"""Defects of the other arguments of a launch: windows, sinks, strides of queries and caches, and scale factors."""

import math
from typing import Any

import torch

from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.defects.planting import DefectGroup
from attnfuzz.kernels.planning.plan import BatchMetadata
from attnfuzz.kernels.planning.queries import BmmScales
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession
from attnfuzz.kernels.trtllm.prefill import MlaPrefill
from attnfuzz.reference.case import KvView, Mode, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.mistake import Mistake

DEFECTS: list[Defect] = []

_WINDOWS = DefectGroup(DEFECTS, Layer.MASK, BugClass.WINDOW)
_SINKS = DefectGroup(DEFECTS, Layer.SINK, BugClass.SINKS)
_STRIDES = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.STRIDES)
_SCALES = DefectGroup(DEFECTS, Layer.SCALE, BugClass.SCALES)
_PRECISION = DefectGroup(DEFECTS, Layer.SCALE, BugClass.PRECISION)


class OtherArguments(MhaSession):
    """A session that launches kernels with wrong arguments."""

    def _others(self, step: Step, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the wrong arguments, given the right ones."""
        raise NotImplementedError

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        arguments = super()._arguments(step, plan, query, results)
        return arguments | self._others(step, arguments)


@_WINDOWS.add(
    "window_size_for_window_left", "ZML PR #763, transformers issue #39408", Mistake.GIVEN_WINDOW, Mistake.WINDOW
)
class TellsWindowSize(OtherArguments):
    """The window size is passed as window_left, the number of keys before a query's own."""

    def _others(self, step: Step, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"window_left": arguments["window_left"] + 1} if arguments["window_left"] >= 0 else {}


@_WINDOWS.add(
    "window_dropped_in_verify", "SGLang PR #31501 (a window on some paths only)", Mistake.GIVEN_WINDOW, Mistake.WINDOW
)
class DropsWindowInVerify(OtherArguments):
    """A verify runs without the window."""

    def _others(self, step: Step, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"window_left": -1} if step.mode is Mode.TARGET_VERIFY else {}


@_SINKS.add(
    "sinks_dropped_in_drafts",
    "SGLang PR #8834 (sinks handed to one path after another)",
    Mistake.GIVEN_SINKS,
    Mistake.SINK,
)
class DropsSinksInDrafts(OtherArguments):
    """Draft extends run without sinks."""

    def _others(self, step: Step, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"sinks": None} if step.mode in (Mode.DRAFT_EXTEND, Mode.DRAFT_EXTEND_V2) else {}


@_SINKS.add(
    "sinks_of_kv_heads", "Pie PR #272 (sinks expanded by the group)", Mistake.GIVEN_SINKS, Mistake.SINK_OF_ANOTHER_HEAD
)
class TellsSinksOfKvHeads(OtherArguments):
    """All query heads of a group get the sink of the first head."""

    def _others(self, step: Step, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._sinks is None:
            return {}
        group = self._case.geometry.group
        return {"sinks": self._bench.memory.copy("sinks", self._sinks[::group].repeat_interleave(group))}


@_SINKS.add(
    "sinks_scaled_as_logits",
    "FlashInfer, docstring of sinks; arXiv:2309.17453",
    Mistake.GIVEN_SINKS,
    Mistake.SINK_SCALED,
)
class ScalesSinks(OtherArguments):
    """Sinks are scaled like the logits."""

    def _others(self, step: Step, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._sinks is None:
            return {}
        return {"sinks": self._bench.memory.copy("sinks", self._sinks * self._scales["bmm1_scale"])}


@_STRIDES.add("query_rows_assumed_packed", "SGLang PR #31667", Mistake.GIVEN_QUERY, Mistake.QUERY_STRIDE)
class AssumesPackedQueries(MhaSession):
    """Query rows are read as contiguous, ignoring their stride."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        packed = query.as_strided(query.shape, (query.shape[1] * query.stride(1), query.stride(1), 1))
        return super()._arguments(step, plan, packed, results)


@_STRIDES.add(
    "query_heads_assumed_packed", "FlashInfer PR #553 (queries with strides)", Mistake.GIVEN_QUERY, Mistake.QUERY_STRIDE
)
class AssumesPackedHeads(MhaSession):
    """Query heads are read as contiguous, ignoring their stride."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        packed = query.as_strided(query.shape, (query.stride(0), query.shape[2], 1))
        return super()._arguments(step, plan, packed, results)


@_STRIDES.add(
    "paired_cache_swapped", "LMCache PR #4467 (a fused K and V pool read in another order)", Mistake.GIVEN_PAGES
)
class SwapsPairedCache(OtherArguments):
    """K and V of a pool that holds both are swapped."""

    def _others(self, step: Step, arguments: dict[str, Any]) -> dict[str, Any]:
        cache = arguments["kv_cache"]
        return {"kv_cache": (cache[:, 1], cache[:, 0])} if isinstance(cache, torch.Tensor) else {}


@_STRIDES.add(
    "token_major_read_as_head_major",
    "vLLM PR #43232 (heads and slots of a permuted pool)",
    Mistake.GIVEN_PAGES,
    Mistake.CACHE_STRIDE,
)
class ReadsTokensAsHeads(OtherArguments):
    """A token-major pool is read as if it were head-major."""

    def _others(self, step: Step, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._case.views.kv is not KvView.TOKEN_MAJOR:
            return {}
        return {"kv_cache": tuple(_dense(pool) for pool in arguments["kv_cache"])}


def _dense(pool: torch.Tensor) -> torch.Tensor:
    """Return the pool's memory, viewed with the dense strides of its shape."""
    return pool.as_strided(pool.shape, torch.empty(pool.shape, device="meta").stride())


@_SCALES.add("k_scale_twice", "vLLM PR #48016", Mistake.GIVEN_SCALE, Mistake.LOGIT_SCALE)
class AppliesKScaleTwice(MhaSession):
    """The scale of K is applied twice, to K and to the logits."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales = super()._launched_scales(step)
        return {**scales, "bmm1_scale": scales["bmm1_scale"] * self._case.scales.k}


@_SCALES.add("v_scale_dropped", "SGLang PR #29278", Mistake.GIVEN_SCALE, Mistake.OUTPUT_SCALE)
class DropsVScale(MhaSession):
    """The scale of V is dropped."""

    def _launched_scales(self, step: Step) -> BmmScales:
        return {**super()._launched_scales(step), "bmm2_scale": 1.0}


@_SCALES.add("v_scale_dropped_in_drafts", "SGLang PR #28144", Mistake.GIVEN_SCALE, Mistake.OUTPUT_SCALE)
class DropsVScaleInDrafts(MhaSession):
    """The scale of V is dropped in the second version of draft extend."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales = super()._launched_scales(step)
        return {**scales, "bmm2_scale": 1.0} if step.mode is Mode.DRAFT_EXTEND_V2 else scales


@_SCALES.add("k_scale_for_values", "AutoFP8 PR #25", Mistake.GIVEN_SCALE, Mistake.OUTPUT_SCALE)
class UsesKScaleForV(MhaSession):
    """The scale of K is used for both K and V."""

    def _launched_scales(self, step: Step) -> BmmScales:
        return {**super()._launched_scales(step), "bmm2_scale": self._case.scales.k}


@_SCALES.add(
    "scale_of_zero_left_out", "SKaiNET PR #880 (a scale of 0 is the default)", Mistake.GIVEN_SCALE, Mistake.LOGIT_SCALE
)
class TakesZeroForNoScale(MhaSession):
    """A softmax scale of 0 is treated as unset, and replaced by the default."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales = super()._launched_scales(step)
        return {**scales, "bmm1_scale": scales["bmm1_scale"] or self._case.geometry.head_dim_qk**-0.5}


@_SCALES.add(
    "v_scale_of_zero_left_out",
    "SKaiNET PR #880 (a scale of 0 is the default)",
    Mistake.GIVEN_SCALE,
    Mistake.OUTPUT_SCALE,
)
class TakesZeroForNoVScale(MhaSession):
    """A V scale of 0 is treated as unset, and replaced by 1."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales = super()._launched_scales(step)
        return {**scales, "bmm2_scale": scales["bmm2_scale"] or 1.0}


@_SCALES.add("root_of_the_scale", "ONNX PR #6984 (q and k are scaled by the root of the scale)", Mistake.GIVEN_SCALE)
class ScalesByRoots(MhaSession):
    """Queries and keys are each multiplied by the square root of the softmax scale, which is NaN below 0."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales = super()._launched_scales(step)
        return {**scales, "bmm1_scale": scales["bmm1_scale"] if scales["bmm1_scale"] >= 0 else math.nan}


@_SCALES.add("scale_of_padded_dim", "IPEX-LLM PR #12619", Mistake.GIVEN_SCALE, Mistake.LOGIT_SCALE)
class ScalesByPaddedDim(MhaSession):
    """The softmax scale uses the head dim after padding to a power of two."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales, dim = super()._launched_scales(step), self._case.geometry.head_dim_qk
        padded = 1 << (dim - 1).bit_length()
        return {**scales, "bmm1_scale": scales["bmm1_scale"] * math.sqrt(dim / padded)}


@_SCALES.add(
    "softmax_scale_in_base_2",
    "FlashInfer PR #1248 (scaleSoftmaxLog2 in the launcher)",
    Mistake.GIVEN_SCALE,
    Mistake.LOGIT_SCALE,
)
class ConvertsBaseTwice(MhaSession):
    """The softmax scale is converted to base 2 by both the caller and the kernel."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales = super()._launched_scales(step)
        return {**scales, "bmm1_scale": scales["bmm1_scale"] * math.log2(math.e)}


@_SCALES.add(
    "softmax_scale_rounded",
    "AXLearn PR #18 (the softmax in bfloat16, not in float32)",
    Mistake.GIVEN_SCALE,
    Mistake.LOGIT_SCALE,
    coarse=True,
)
class RoundsSoftmaxScale(MhaSession):
    """The softmax scale is rounded to the dtype of the queries."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales, dtype = super()._launched_scales(step), self._case.geometry.dtype.torch_dtype
        return {**scales, "bmm1_scale": torch.tensor(scales["bmm1_scale"], dtype=dtype).item()}


@_SCALES.add(
    "v_scale_rounded",
    "vLLM PR #42580 (scales of K and V read by the kernel)",
    Mistake.GIVEN_SCALE,
    Mistake.OUTPUT_SCALE,
    coarse=True,
)
class RoundsVScale(MhaSession):
    """The scale of V is rounded to the dtype of the queries."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales, dtype = super()._launched_scales(step), self._case.geometry.dtype.torch_dtype
        return {**scales, "bmm2_scale": torch.tensor(scales["bmm2_scale"], dtype=dtype).item()}


@_SCALES.add(
    "v_scale_a_thousandth_off",
    "SGLang issue #26518 (quality lost to inexact FP8 scales)",
    Mistake.GIVEN_SCALE,
    Mistake.OUTPUT_SCALE,
    coarse=True,
)
class InflatesVScale(MhaSession):
    """The scale of V is 0.1% too large."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales = super()._launched_scales(step)
        return {**scales, "bmm2_scale": 1.001 * scales["bmm2_scale"]}


@_PRECISION.add("query_cast_to_fp8", "SGLang PR #28144", Mistake.GIVEN_QUERY)
class CastsQueriesToFp8(MhaSession):
    """Queries are cast to the cache's FP8 dtype without a scale of their own."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        if self._case.geometry.kv_dtype is DType.FLOAT8_E4M3:
            largest = torch.finfo(torch.float8_e4m3fn).max
            cast = query.clamp(-largest, largest).to(torch.float8_e4m3fn).to(query.dtype)
            query = self._bench.memory.copy("query", cast)
        return super()._arguments(step, plan, query, results)


@_SCALES.add("scale_of_latent_dim", "vLLM-metax PR #113", Mistake.GIVEN_SCALE, Mistake.LOGIT_SCALE)
class ScalesByLatentDim(MlaSession):
    """The softmax scale of latents uses rank + rope instead of nope + rope, the head dim of their keys."""

    def _launched_scales(self) -> BmmScales:
        latent, scales = self._latent, super()._launched_scales()
        factor = math.sqrt((latent.nope + latent.rope) / (latent.rank + latent.rope))
        return {**scales, "bmm1_scale": scales["bmm1_scale"] * factor}


@_SCALES.add("scale_of_value_dim", "Megatron-LM issue #1501", Mistake.GIVEN_SCALE, Mistake.LOGIT_SCALE)
class ScalesByValueDim(MlaPrefill):
    """The softmax scale of a prefill uses the head dim of V."""

    def _launched_scales(self) -> BmmScales:
        return {**super()._launched_scales(), "bmm1_scale": self._case.scales.softmax / math.sqrt(self._latent.vo)}


@_SCALES.add("k_scale_without_fp8", "SGLang PR #18396", Mistake.GIVEN_SCALE, Mistake.LOGIT_SCALE)
class ScalesDequantisedKeys(MlaPrefill):
    """The scale of K is applied to the keys of a prefill, which are not quantised."""

    def _launched_scales(self) -> BmmScales:
        scales = super()._launched_scales()
        return {**scales, "bmm1_scale": scales["bmm1_scale"] * self._case.scales.k}
