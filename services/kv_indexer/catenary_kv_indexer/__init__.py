"""Mirror of which worker holds which KV block."""
