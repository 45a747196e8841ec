"""The commands as users see them: names, options and help. Each imports its implementation when it is run."""
