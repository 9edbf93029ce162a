"""The bus: its subjects, the messages that travel on them, and how they are encoded."""
