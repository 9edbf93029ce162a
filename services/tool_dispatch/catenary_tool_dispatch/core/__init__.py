"""Every decision of tool-dispatch, pure: no bus, no clock, no asyncio."""
