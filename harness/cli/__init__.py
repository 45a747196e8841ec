"""The command line: `commands` declares the commands, and a module for each implements it."""
