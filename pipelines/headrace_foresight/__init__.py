"""What work costs and how long it takes: budgets, forecasts, what-if."""
