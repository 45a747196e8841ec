"""The families of ops of this project: `attnfuzz.harness.family` says what a family is."""
