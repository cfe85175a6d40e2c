"""What work costs, and what it will: prices, shares, forecasts; pure, the ledger is read."""
