"""The HTTP APIs: request bytes → `Draft`, turn events → that API's stream and body. Sans-IO; N APIs meet M models here.

An API is one value of `api.Api`, as `chat.CHAT` is. All read with `reading.read`, so bad input reads the same.
"""
