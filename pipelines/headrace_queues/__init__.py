"""PBS, Grid Engine and LSF as backends: one file and one template each."""
