"""EC2 as a backend: instances instead of a queue's jobs, their cost, and leftover resources."""
