"""Takes a job to its end: attempts, end, resume, reap."""
