"""What draws: tables, JSON, bars."""
