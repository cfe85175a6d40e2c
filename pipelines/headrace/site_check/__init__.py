"""Whether a site is fit for work: its machines, queues and folders, before they are needed."""
