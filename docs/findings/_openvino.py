"""OpenVINO's PagedAttention, compiled for a CPU."""

from _template import requirements

with requirements("openvino numpy"):
    import numpy as np
    import openvino as ov
    from openvino import opset13 as op
    from openvino.op import _PagedAttentionExtension as PagedAttention

BLOCK = 32
TYPES = {"f": (ov.Type.f32, np.float32), "i": (ov.Type.i32, np.int32), "b": (ov.Type.u8, np.uint8)}


def paged_attention(heads, dim_k, dim_v, **properties):
    """Return the compiled operator: one KV head, a cache of blocks of 32 tokens, no window, sinks or rotation."""
    inputs = {
        "q": ("f", [-1, heads * dim_k]), "k": ("f", [-1, dim_k]), "v": ("f", [-1, dim_v]),
        "key_cache": ("f", [-1, 1, BLOCK, dim_k]), "value_cache": ("f", [-1, 1, BLOCK, dim_v]),
        "past_lens": ("i", [-1]), "subsequence_begins": ("i", [-1]), "block_indices": ("i", [-1]),
        "block_indices_begins": ("i", [-1]), "scale": ("f", []), "sliding_window": ("i", []), "": ("f", [0]),
        "max_context_len": ("i", []),
    }  # fmt: skip
    parameters = [op.parameter(shape, TYPES[kind][0], name=name) for name, (kind, shape) in inputs.items() if name]
    given = iter(parameters)
    arguments = [
        (next(given) if name else op.constant(np.zeros(shape, np.float32))).output(0)
        for name, (_, shape) in inputs.items()
    ]
    # Windows of scores, rotation, sparsity, sinks, eviction, token types, biases: none.
    for kind, shape in zip("iiiffiifiiiiibi", ([0], [0], [0], [0], [0], [], [], [0], [], *[[0]] * 6), strict=True):
        arguments.append(op.constant(np.zeros(shape, TYPES[kind][1])).output(0))
    node = PagedAttention(arguments)
    info = node.get_rt_info()
    info["num_k_heads"], info["k_head_size"], info["num_v_heads"], info["v_head_size"] = 1, dim_k, 1, dim_v
    model = ov.Model([node.output(0)], parameters)
    return ov.Core().compile_model(model, "CPU", properties | {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1})
