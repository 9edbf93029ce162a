"""Conversation, turn events, bus messages and API shapes of Catenary: sans-IO."""
