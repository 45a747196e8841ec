"""The API that each server speaks."""

from collections.abc import Mapping

from attnfuzz.harness.serve.dialects import OpenAiApi, ServedApi, SglangApi
from attnfuzz.harness.serve.surface import Speaks
from attnfuzz.harness.serve.trtllm import TensorRtApi

APIS: Mapping[Speaks, ServedApi] = {
    Speaks.SGLANG: SglangApi(),
    Speaks.OPENAI: OpenAiApi(),
    Speaks.TENSORRT: TensorRtApi(),
}
