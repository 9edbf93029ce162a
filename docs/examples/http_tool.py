"""A tool behind a URL: `python http_tool.py 8900`. Needs nothing but Python; port 0 is any free one."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Tool(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        arguments = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = json.dumps({"word": arguments["word"], "letters": len(arguments["word"])}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


if len(sys.argv) == 1:
    sys.exit(__doc__)
server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Tool)
print(f"listening on {server.server_port}", flush=True)
server.serve_forever()
