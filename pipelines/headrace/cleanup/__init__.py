"""What fills the disk, and its removal: reports, plans, and carrying a plan out."""
