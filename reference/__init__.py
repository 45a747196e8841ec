"""Ground truth: the vocabulary of cases and fp64 attention. Imports only torch, msgspec and safetensors."""
