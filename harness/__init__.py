"""How it is tried: memory, workers, the judge, campaigns, findings, the command line and the pytest plugin."""
