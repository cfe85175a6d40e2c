"""One suite over several sites: a part at each of them, and the driver of all."""
