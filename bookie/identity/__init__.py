"""Who the data of a directory belongs to: cookies, lives, the registration."""
