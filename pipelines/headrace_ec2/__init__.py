"""EC2 as a backend: instances in the place of a queue's jobs, what they cost, and what is left."""
