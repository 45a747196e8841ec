"""What to try: Hypothesis strategies that draw whole cases."""
