"""Steps: spec, mailbox, driver, status, child supervision."""
