"""The families of ops of this project: `attnfuzz.harness.family` defines families."""
