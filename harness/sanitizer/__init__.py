"""compute-sanitizer as a further witness: cases run in one process under one of its tools, in memory without guards."""
