"""Changes of Python source, one at a time, and the lines that a process executes: for tests of a fuzzer by mutants."""
