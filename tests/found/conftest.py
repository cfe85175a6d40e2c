"""Programs in the manner of others' code: tests run them, pytest does not import them."""

collect_ignore_glob = ["*.py"]
