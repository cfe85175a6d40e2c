"""Batch systems that give machines by queue: jobs are rendered, submitted, polled and cancelled."""
