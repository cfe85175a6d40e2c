"""headrace: from raw samples to evaluated models on a laptop, a Slurm cluster or EC2."""

__version__ = "0.1.0"
