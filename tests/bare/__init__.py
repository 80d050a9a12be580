"""The wheel, tried as somebody who has nothing else of dlog."""
