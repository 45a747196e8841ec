"""Measures the error of a correct kernel, and fits the noise model used to judge its outputs."""
