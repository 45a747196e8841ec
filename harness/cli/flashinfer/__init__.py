"""The commands on FlashInfer's modules and dumps."""
