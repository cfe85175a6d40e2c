"""Batch systems that give machines by queue: jobs rendered, submitted, looked at, cancelled."""
