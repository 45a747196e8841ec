"""Measures the error of a correct kernel, and fits the noise model that its outputs are judged by from then on."""
