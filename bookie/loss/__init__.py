"""What a bookie may have lost: what it counts of itself, and limbo."""
