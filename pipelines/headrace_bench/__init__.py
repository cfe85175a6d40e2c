"""Speed of reading, packing and staging, against the machine's limit and against peers."""
