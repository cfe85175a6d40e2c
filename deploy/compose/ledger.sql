-- headrace's ledger, beside Airflow's database
CREATE DATABASE headrace;
