"""Modules that a release imports and that no attention backend runs."""

from dataclasses import dataclass

from packaging.version import Version

from attnfuzz.kernels.sglang.adaptations.spans import VersionRange, span


@dataclass(frozen=True)
class Stubbed:
    """A module, and where a release imports it (below sglang/, in the first version of the range)."""

    module: str
    versions: VersionRange
    source: str


_ALL = span("0.5.9")

STUBBED = (
    # Packages that a server needs and attention does not: configs, tokenizers and weights of models.
    Stubbed("transformers", _ALL, "srt/utils/hf_transformers_utils.py:34"),
    Stubbed("huggingface_hub", _ALL, "srt/utils/hf_transformers_utils.py:26"),
    Stubbed("IPython", _ALL, "utils.py:26"),
    Stubbed("compressed_tensors", _ALL, "srt/layers/quantization/compressed_tensors/compressed_tensors.py:20"),
    Stubbed("regex", _ALL, "srt/layers/quantization/modelopt_quant.py:8"),
    Stubbed("gguf", _ALL, "srt/layers/quantization/gguf.py:9"),
    Stubbed("safetensors", _ALL, "srt/connector/serde/safe_serde.py:6"),
    Stubbed("dill", _ALL, "srt/sampling/custom_logit_processor.py:6"),
    Stubbed("torchvision", span("0.5.10"), "srt/utils/common.py:90"),
    Stubbed("yaml", _ALL, "srt/multiplex/pdmux_context.py:5"),
    # Compiled for GPUs; this is for pools in the memory of the host, which nothing here has.
    Stubbed("sgl_kernel", span("0.5.9", before="0.5.11"), "srt/mem_cache/memory_pool_host.py:32"),
    # Parts of SGLang that import those packages, or many others.
    Stubbed("sglang.srt.configs", _ALL, "srt/utils/hf_transformers_utils.py:46"),
    Stubbed("sglang.srt.parser", _ALL, "srt/server_args.py:34"),
    Stubbed("sglang.srt.function_call", _ALL, "srt/server_args.py:31"),
)


def stubbed_in(version: Version) -> tuple[str, ...]:
    """The modules that stubs stand for in a version."""
    return tuple(each.module for each in STUBBED if version in each.versions)
