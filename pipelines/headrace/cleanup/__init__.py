"""What fills the disk, and its removal."""
