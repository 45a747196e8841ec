"""The parent's side of workers: judging a case in a process that may die."""
