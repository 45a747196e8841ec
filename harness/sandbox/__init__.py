"""The parent's side of workers: judge a case in a process that may die."""
