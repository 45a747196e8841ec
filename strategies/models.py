"""Attention layers of models that are served, as one rank of a server sees them."""

from dataclasses import dataclass

from attnfuzz.reference.geometry import Latent


@dataclass(frozen=True)
class LayerSpec:
    """One kind of layer of a model.

    `heads` has the (query heads, KV heads) of a rank under the usual tensor and data parallel sizes, `pages` the usual
    page sizes. `window_left` and `sinks` are as in Geometry. Latent layers take their head dims from `latent`.
    """

    model: str
    heads: tuple[tuple[int, int], ...]
    head_dim: int
    pages: tuple[int, ...]
    window_left: int = -1
    sinks: bool = False
    latent: Latent | None = None


_DEEPSEEK = Latent(rank=512, rope=64, nope=128, vo=128)

# From the models' configurations, divided by tensor parallel sizes of 4, 8 and 16 or kept whole for data parallelism.
LAYERS = (
    LayerSpec("Llama-3.1 8B and 70B", ((8, 1), (4, 1), (32, 8), (64, 8)), 128, (16, 32, 64)),
    LayerSpec("Qwen3.5-397B-A17B", ((4, 1), (8, 1), (32, 2)), 256, (64,)),
    LayerSpec("GPT-OSS, full layers", ((8, 1), (64, 8)), 64, (64,), sinks=True),
    LayerSpec("GPT-OSS, window layers", ((8, 1), (64, 8)), 64, (64,), window_left=127, sinks=True),
    LayerSpec("Gemma 3, window layers", ((8, 4), (16, 8)), 256, (16, 32, 64), window_left=1023),
    LayerSpec("Gemma 4, full layers", ((8, 4),), 512, (16, 32, 64)),
    LayerSpec("DeepSeek-V3", ((8, 1), (16, 1), (128, 1)), 576, (32, 64), latent=_DEEPSEEK),
    LayerSpec("Kimi-K2", ((8, 1), (64, 1)), 576, (32, 64), latent=_DEEPSEEK),
    LayerSpec("GLM with latents", ((10, 1), (20, 1)), 576, (32, 64), latent=_DEEPSEEK),
)
