"""Changes to a release that make it run without a server, a GPU or a model.

None of them touches how its FlashInfer backend plans, pads, writes or calls: they only concern imports. Each row names
its versions and the line of vLLM behind it.
"""

from packaging.version import Version

from attnfuzz.kernels.releases.versions import Stubbed, span

_ALL = span("0.26.0")

STUBBED = (
    # Packages that a server needs and attention does not: configs, tokenizers, requests and metrics.
    Stubbed("regex", _ALL, "utils/import_utils.py:17"),
    Stubbed("zmq", _ALL, "utils/network_utils.py:19"),
    Stubbed("cbor2", _ALL, "utils/hashing.py:12"),
    Stubbed("transformers", _ALL, "model_executor/layers/quantization/base_config.py:11"),
    Stubbed("huggingface_hub", _ALL, "transformers_utils/config.py:13"),
    Stubbed("cloudpickle", _ALL, "v1/serial_utils.py:14"),
    Stubbed("uvloop", _ALL, "v1/utils.py:26"),
    Stubbed("prometheus_client", _ALL, "v1/metrics/perf.py:15"),
    Stubbed("cachetools", _ALL, "v1/structured_output/utils.py:16"),
    Stubbed("llguidance", _ALL, "v1/structured_output/backend_guidance.py"),
    Stubbed("xgrammar", _ALL, "v1/structured_output/backend_xgrammar.py"),
    # Parts of vLLM that import those packages, or many others.
    Stubbed("vllm.entrypoints", _ALL, "parser/abstract_parser.py"),
    Stubbed("vllm.multimodal", _ALL, "config/multimodal.py"),
    Stubbed("vllm.transformers_utils", _ALL, "config/model.py"),
    Stubbed("vllm.renderers", _ALL, "config/model.py"),
    Stubbed("vllm.parser", _ALL, "reasoning/__init__.py"),
    Stubbed("vllm.tool_parsers", _ALL, "parser/abstract_parser.py"),
    Stubbed("vllm.usage", _ALL, "v1/utils.py"),
    # It imports the compiler of torch's extensions, and with it setuptools.
    Stubbed("vllm.distributed.device_communicators.pynccl_allocator", _ALL, "distributed/parallel_state.py"),
)


def stubbed_in(version: Version) -> tuple[str, ...]:
    """The modules that are stubbed in a version."""
    return tuple(each.module for each in STUBBED if version in each.versions)
