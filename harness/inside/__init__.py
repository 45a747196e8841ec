"""What runs in a worker, and nowhere else."""
