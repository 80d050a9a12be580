"""What each page says, as templates print it: made of what was seen, by nobody asking anybody."""
