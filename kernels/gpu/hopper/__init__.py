"""The TRT-LLM backends on Hopper: XQA and fmha_v2 in place of TRT-LLM's generated kernels, which it has none of."""
