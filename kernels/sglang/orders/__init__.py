"""In which order a release's workers plan, pad, capture, replay and forward, with the lines that it was read from."""
