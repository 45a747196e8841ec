"""What is right: the problem's vocabulary and attention computed in fp64. Imports torch and msgspec only."""
