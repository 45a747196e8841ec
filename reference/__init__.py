"""Ground truth: the vocabulary of cases, and fp64 attention. Imports torch, msgspec and safetensors only."""
