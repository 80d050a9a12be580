"""Small bugs, put into the code one at a time, and whether a test notices each (`mutation`)."""
