"""A suite over several sites: its parts, their processes, and the driver that plans for them."""
