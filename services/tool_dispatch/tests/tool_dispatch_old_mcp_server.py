"""An MCP server as they were in 2025: a handshake, and notifications that nobody asked for. Needs nothing but Python."""

import json
import sys

tools = ["first"]
said: list[str] = []


def send(message: dict[str, object]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def answer(method: str, parameters: dict[str, object]) -> dict[str, object] | None:
    match method:
        case "initialize":
            info = {"name": "old", "version": "1"}
            return {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": info,
            }
        case "tools/list":
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}
        case "tools/call" if parameters["name"] == "first":
            tools.append("second")
            send({"method": "notifications/tools/list_changed"})
            return {"content": [{"type": "text", "text": "one more"}]}
        case "tools/call":
            return {"content": [{"type": "text", "text": " ".join(said)}]}
    return None


print("this line is no message", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    said.append(message["method"])
    if "id" in message:
        result = answer(message["method"], message.get("params", {}))
        error = {"code": -32601, "message": "no such method"}
        send({"id": message["id"], **({"error": error} if result is None else {"result": result})})
