"""Checks of a site: its machines, queues and folders, before they are needed."""
