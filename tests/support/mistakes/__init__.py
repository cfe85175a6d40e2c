"""Mistakes of users, and what the hints of their errors say."""
