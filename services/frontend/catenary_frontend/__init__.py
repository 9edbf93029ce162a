"""HTTP edge of Catenary: OpenAI and Anthropic APIs in, turn events out."""
