"""The TRT-LLM backends on Hopper: XQA and fmha_v2 replace TRT-LLM's generated kernels, which Hopper lacks."""
