"""One HTML file with tables and figures, for whatever is reported."""
