"""headrace in Airflow: operators, trigger, links, DAG bundle."""
