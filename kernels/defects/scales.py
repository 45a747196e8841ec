"""Defects of scale factors: applied twice, dropped, taken from the wrong dim, or rounded."""

import math
from typing import Any

import torch

from attnfuzz.kernels.defects.defect import BugClass, Layer
from attnfuzz.kernels.defects.planting import defect
from attnfuzz.kernels.plan import BatchMetadata
from attnfuzz.kernels.results import Results
from attnfuzz.kernels.scales import BmmScales
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession
from attnfuzz.kernels.trtllm.prefill import MlaPrefill
from attnfuzz.reference.case import Mode, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.mistake import Mistake


class AppliesKScaleTwice(MhaSession):
    """K's scale is applied to K and to the logits."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales = super()._launched_scales(step)
        return {**scales, "bmm1_scale": scales["bmm1_scale"] * self._case.scales.k}


class DropsVScale(MhaSession):
    """V's scale is dropped."""

    def _launched_scales(self, step: Step) -> BmmScales:
        return {**super()._launched_scales(step), "bmm2_scale": 1.0}


class DropsVScaleInDrafts(MhaSession):
    """V's scale is dropped in the second version of draft extend."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales = super()._launched_scales(step)
        return {**scales, "bmm2_scale": 1.0} if step.mode is Mode.DRAFT_EXTEND_V2 else scales


class UsesKScaleForV(MhaSession):
    """One scale, K's, stands for those of K and of V."""

    def _launched_scales(self, step: Step) -> BmmScales:
        return {**super()._launched_scales(step), "bmm2_scale": self._case.scales.k}


class ScalesByPaddedDim(MhaSession):
    """The softmax scale is that of the head dim after padding to a power of two."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales, dim = super()._launched_scales(step), self._case.geometry.head_dim_qk
        padded = 1 << (dim - 1).bit_length()
        return {**scales, "bmm1_scale": scales["bmm1_scale"] * math.sqrt(dim / padded)}


class ConvertsBaseTwice(MhaSession):
    """The softmax scale is converted to base 2 by the caller, and again by the kernel."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales = super()._launched_scales(step)
        return {**scales, "bmm1_scale": scales["bmm1_scale"] * math.log2(math.e)}


class RoundsSoftmaxScale(MhaSession):
    """The softmax scale is kept in the dtype of the queries."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales, dtype = super()._launched_scales(step), self._case.geometry.dtype.torch_dtype
        return {**scales, "bmm1_scale": torch.tensor(scales["bmm1_scale"], dtype=dtype).item()}


class RoundsVScale(MhaSession):
    """V's scale is kept in the dtype of the queries."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales, dtype = super()._launched_scales(step), self._case.geometry.dtype.torch_dtype
        return {**scales, "bmm2_scale": torch.tensor(scales["bmm2_scale"], dtype=dtype).item()}


class InflatesVScale(MhaSession):
    """V's scale is a part in a thousand too large."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales = super()._launched_scales(step)
        return {**scales, "bmm2_scale": 1.001 * scales["bmm2_scale"]}


class CastsQueriesToFp8(MhaSession):
    """Queries are cast to the FP8 of the cache without a scale of their own."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        if self._case.geometry.kv_dtype is DType.FLOAT8_E4M3:
            largest = torch.finfo(torch.float8_e4m3fn).max
            cast = query.clamp(-largest, largest).to(torch.float8_e4m3fn).to(query.dtype)
            query = self._bench.memory.copy("query", cast)
        return super()._arguments(step, plan, query, results)


class ScalesByLatentDim(MlaSession):
    """The softmax scale of latents is that of rank + rope, not of the keys of nope + rope that they stand for."""

    def _launched_scales(self) -> BmmScales:
        latent, scales = self._latent, super()._launched_scales()
        factor = math.sqrt((latent.nope + latent.rope) / (latent.rank + latent.rope))
        return {**scales, "bmm1_scale": scales["bmm1_scale"] * factor}


class ScalesByValueDim(MlaPrefill):
    """The softmax scale of a prefill is that of the values' head dim."""

    def _launched_scales(self) -> BmmScales:
        return {**super()._launched_scales(), "bmm1_scale": self._case.scales.softmax / math.sqrt(self._latent.vo)}


class ScalesDequantisedKeys(MlaPrefill):
    """K's scale is applied to the keys of a prefill, which are not quantised."""

    def _launched_scales(self) -> BmmScales:
        scales = super()._launched_scales()
        return {**scales, "bmm1_scale": scales["bmm1_scale"] * self._case.scales.k}


SCALE_DEFECTS = (
    defect(
        AppliesKScaleTwice,
        "k_scale_twice",
        Layer.SCALE,
        BugClass.SCALES,
        "vLLM PR #48016",
        explained_by=(Mistake.TOLD_SCALE, Mistake.LOGIT_SCALE),
    ),
    defect(
        DropsVScale,
        "v_scale_dropped",
        Layer.SCALE,
        BugClass.SCALES,
        "SGLang PR #29278",
        explained_by=(Mistake.TOLD_SCALE, Mistake.OUTPUT_SCALE),
    ),
    defect(
        DropsVScaleInDrafts,
        "v_scale_dropped_in_drafts",
        Layer.SCALE,
        BugClass.SCALES,
        "SGLang PR #28144",
        explained_by=(Mistake.TOLD_SCALE, Mistake.OUTPUT_SCALE),
    ),
    defect(
        UsesKScaleForV,
        "k_scale_for_values",
        Layer.SCALE,
        BugClass.SCALES,
        "AutoFP8 PR #25",
        explained_by=(Mistake.TOLD_SCALE, Mistake.OUTPUT_SCALE),
    ),
    defect(
        ScalesByPaddedDim,
        "scale_of_padded_dim",
        Layer.SCALE,
        BugClass.SCALES,
        "IPEX-LLM PR #12619",
        explained_by=(Mistake.TOLD_SCALE, Mistake.LOGIT_SCALE),
    ),
    defect(
        ConvertsBaseTwice,
        "softmax_scale_in_base_2",
        Layer.SCALE,
        BugClass.SCALES,
        "FlashInfer PR #1248 (scaleSoftmaxLog2 in the launcher)",
        explained_by=(Mistake.TOLD_SCALE, Mistake.LOGIT_SCALE),
    ),
    defect(
        RoundsSoftmaxScale,
        "softmax_scale_rounded",
        Layer.SCALE,
        BugClass.SCALES,
        "AXLearn PR #18 (the softmax in bfloat16, not in float32)",
        coarse=True,
        explained_by=(Mistake.TOLD_SCALE, Mistake.LOGIT_SCALE),
    ),
    defect(
        RoundsVScale,
        "v_scale_rounded",
        Layer.SCALE,
        BugClass.SCALES,
        "vLLM PR #42580 (scales of K and V read by the kernel)",
        coarse=True,
        explained_by=(Mistake.TOLD_SCALE, Mistake.OUTPUT_SCALE),
    ),
    defect(
        InflatesVScale,
        "v_scale_a_thousandth_off",
        Layer.SCALE,
        BugClass.SCALES,
        "SGLang issue #26518 (quality lost to inexact FP8 scales)",
        coarse=True,
        explained_by=(Mistake.TOLD_SCALE, Mistake.OUTPUT_SCALE),
    ),
    defect(
        CastsQueriesToFp8,
        "query_cast_to_fp8",
        Layer.SCALE,
        BugClass.PRECISION,
        "SGLang PR #28144",
        explained_by=(Mistake.TOLD_QUERY,),
    ),
    defect(
        ScalesByLatentDim,
        "scale_of_latent_dim",
        Layer.SCALE,
        BugClass.SCALES,
        "vLLM-metax PR #113",
        explained_by=(Mistake.TOLD_SCALE, Mistake.LOGIT_SCALE),
    ),
    defect(
        ScalesByValueDim,
        "scale_of_value_dim",
        Layer.SCALE,
        BugClass.SCALES,
        "Megatron-LM issue #1501",
        explained_by=(Mistake.TOLD_SCALE, Mistake.LOGIT_SCALE),
    ),
    defect(
        ScalesDequantisedKeys,
        "k_scale_without_fp8",
        Layer.SCALE,
        BugClass.SCALES,
        "SGLang PR #18396",
        explained_by=(Mistake.TOLD_SCALE, Mistake.LOGIT_SCALE),
    ),
)
"""What becomes of scale factors."""
