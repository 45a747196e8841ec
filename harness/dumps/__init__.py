"""FlashInfer's dumps of production calls: read as foreign data and made into cases."""
