"""headrace's pages inside Airflow: a FastAPI app, and static files without a build."""
