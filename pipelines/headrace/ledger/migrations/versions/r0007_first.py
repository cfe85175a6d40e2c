"""The first known revision of a ledger; its tables are made from the rows' classes."""

revision = "0007"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing to do: a ledger that begins, or is older, gets today's tables at once."""
