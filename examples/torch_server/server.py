#!/usr/bin/env python3
"""usage: server.py [--port N]

Serves a small model with PyTorch over HTTP on 127.0.0.1, and announces each request to sluice. Port 0 is any free one.
  POST /embed    {"text": "..."}: the first numbers of the model's output
  GET /healthz   ok"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

try:
    import torch
except ImportError as error:
    sys.exit(f"server.py: cannot import PyTorch: {error}; install it as https://pytorch.org explains")
try:
    import sluice
except ImportError as error:
    sys.exit(f"server.py: cannot import sluice: {error}; add adapters/client/python to PYTHONPATH")

LONGEST = 512  # Bytes of a text that count.
WIDTH, HEADS, LAYERS = 1024, 16, 24
MOST_BODY = 1 << 16


class Model:
    """A transformer with random weights, as a CUDA graph: one launch for each request."""

    def __init__(self):
        if not torch.cuda.is_available():
            sys.exit("server.py: PyTorch finds no GPU; check that nvidia-smi lists one")
        torch.set_grad_enabled(False)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0, batch_first=True)
        self.model = torch.nn.Sequential(torch.nn.Embedding(256, WIDTH),
                                         torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False))
        self.model.cuda().half().eval()
        self.given = torch.zeros(1, LONGEST, dtype=torch.long, device="cuda")
        self.lock = threading.Lock()  # One request at a time uses the graph.
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                self.model(self.given)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = self.model(self.given).float().mean(1)[0, :8]

    def embed(self, text):
        numbers = list(text.encode()[:LONGEST])
        numbers += [0] * (LONGEST - len(numbers))
        with self.lock:
            self.given.copy_(torch.tensor([numbers]))
            self.graph.replay()
            return self.result.tolist()  # Waits for the GPU.


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 30  # Seconds that a peer may let the server wait.

    def do_GET(self):
        if self.path == "/healthz":
            self.answer(200, {"status": "ok"})
        else:
            self.answer(404, {"error": f"unknown path {self.path}; POST to /embed"})

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if self.path != "/embed" or not length.isdecimal() or int(length) > MOST_BODY:
            self.close_connection = True  # Its body is not read.
            self.answer(404 if self.path != "/embed" else 400, {"error": f"expected POST /embed with at most {MOST_BODY} bytes"})
            return
        body = self.rfile.read(int(length))
        try:
            text = json.loads(body)["text"]
            if not isinstance(text, str):
                raise TypeError
        except (ValueError, LookupError, TypeError):
            self.answer(400, {"error": 'expected a JSON object with a text, such as {"text": "What is a sluice?"}'})
            return
        # What sluice needs: while this block runs, offline work makes room. It ends before the answer is sent: a peer
        # that reads slowly must not keep the GPU.
        with client.busy(), client.span("request"):
            numbers = model.embed(text)
        self.answer(200, {"embedding": numbers})

    def answer(self, code, content):
        body = json.dumps(content).encode() + b"\n"
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # Connections that may wait to be accepted: 5 is too few.


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments and (len(arguments) != 2 or arguments[0] != "--port" or not arguments[1].isdecimal()):
        sys.exit(__doc__)
    model = Model()
    client = sluice.connect("torch_server")
    with Server(("127.0.0.1", int(arguments[1]) if arguments else 8000), Handler) as server:
        print(f"serving on http://127.0.0.1:{server.server_port}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
