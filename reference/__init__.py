"""What is right: the vocabulary, and attention computed in fp64. Imports torch, msgspec and safetensors only."""
