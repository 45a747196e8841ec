"""`python -m attnfuzz`, the same as the command `attnfuzz`."""

from attnfuzz.harness.cli.main import main

if __name__ == "__main__":
    main()
