"""Owner of the turn: text to tokens, placement, tokens to events."""
