"""The command line: `attnfuzz fuzz | replay | bugs | backends | export`."""
