"""The formats and styles of thinking that come with the library, one family per module."""
