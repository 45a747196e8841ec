"""SGLang's DeepSeek Sparse Attention: a release's own backend and indexer, on native kernels."""
