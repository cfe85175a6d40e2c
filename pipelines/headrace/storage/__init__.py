"""Files and folders: atomic writes, checksums, locks, manifest, layout."""
