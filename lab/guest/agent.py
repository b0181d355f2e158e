#!/usr/bin/python3
"""Agent of a guest: runs shell scripts sent over TCP and streams their output back.

One JSON line in: {"script": "...", "limit_s": N}. JSON lines out: {"line": "..."} for every line
of output, then {"code": N}. A script that exceeds its limit is killed with its whole session and
reports code 124, as timeout(1) does. When the other side hangs up, the script is killed too.
"""
import json, os, select, signal, socketserver, subprocess, sys, time


class Handler(socketserver.StreamRequestHandler):
    def send(self, frame):
        self.wfile.write(json.dumps(frame).encode() + b"\n")

    def handle(self):
        ask = json.loads(self.rfile.readline())
        end = time.monotonic() + ask.get("limit_s", 3600)
        p = subprocess.Popen(["bash", "-c", ask["script"]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, start_new_session=True)
        code, rest = None, b""
        out = p.stdout.fileno()
        while True:
            ready = select.select([out, self.connection], [], [], max(0, end - time.monotonic()))[0]
            if not ready:
                code = 124
            elif self.connection in ready:      # nothing more is ever sent: it hung up
                code = 125
            if code:
                os.killpg(p.pid, signal.SIGKILL)
                break
            data = os.read(out, 65536)
            if not data:
                break
            rest += data
            *lines, rest = rest.split(b"\n")
            for line in lines:
                self.send({"line": line.decode(errors="replace")})
        if rest:
            self.send({"line": rest.decode(errors="replace")})
        self.send({"code": code or (p.wait() if p.wait() >= 0 else 128 - p.returncode)})


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


Server((sys.argv[1], 7000), Handler).serve_forever()
