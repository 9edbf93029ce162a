"""An MCP server with one tool, on stdin and stdout. Needs the package `mcp`."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("words")


@server.tool()
def letters(word: str) -> str:
    """Count the letters of a word."""
    return f"{word} has {len(word)} letters"


server.run()
