"""The command line: `attnfuzz fuzz | replay | bugs | defects | backends | export`."""
