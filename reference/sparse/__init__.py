"""Sparse attention: cases, right results of each op, and the features that cases can have.

A query of DeepSeek Sparse Attention (DeepSeek-V3.2-Exp, section 2.1) attends to the few keys of highest score. Up to
five ops run one after the other: a write of new keys into the indexer's cache, scores of all keys, a top-k, a transform
of positions into slots of the KV cache, and attention over the list of slots.
"""
