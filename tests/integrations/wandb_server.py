"""The part of W&B's server that a run talks to: it remembers each run's history lines by offset, and its summary."""

import gzip
import http.server
import json
import threading


class Server(http.server.ThreadingHTTPServer):
    """runs: {id: {"history": {offset: row}, "summary": text, "exit": code}}."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.runs = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def steps(self, id: str) -> list[int]:
        return [row["_step"] for _, row in sorted(self.runs[id]["history"].items())]

    def stream(self, id: str, sent: dict) -> dict:
        run = self.runs[id]
        for name, part in (sent.get("files") or {}).items():
            if name == "wandb-history.jsonl":
                run["history"] |= {part["offset"] + i: json.loads(line) for i, line in enumerate(part["content"])}
            elif name == "wandb-summary.json":
                run["summary"] = part["content"][-1]
        run["exit"] = sent["exitcode"] if sent.get("complete") else run["exit"]
        return {}

    def query(self, operation: str, about: dict) -> dict:
        project = {"id": "P", "name": about.get("project"), "entity": {"id": "E", "name": "me"}}
        id = about.get("name")
        if operation == "UpsertBucket":
            run = self.runs.setdefault(id, {"history": {}, "summary": "{}", "exit": None, "config": "{}"})
            run["config"] = about.get("config") or run["config"]
            bucket = {"id": id, "name": id, "historyLineCount": len(run["history"]), "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": not run["history"]}}
        if operation == "RunResumeStatus" and (run := self.runs.get(id)):
            tail = [json.dumps(row) for _, row in sorted(run["history"].items())[-1:]]
            counts = {"historyLineCount": len(run["history"]), "logLineCount": 0, "eventsLineCount": 0}
            tails = {"historyTail": json.dumps(tail), "eventsTail": "[]", "summaryMetrics": run["summary"]}
            about = {"id": id, "name": id, "config": run["config"], "tags": [], "wandbConfig": '{"t": 1}'}
            return {"model": {**project, "bucket": about | counts | tails}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.url}/file"} for name in about["files"]]
            return {"createRunFiles": {"runID": "R", "uploadHeaders": [], "files": files}}
        return {"model": None}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer = {}
        if self.path.endswith("/file_stream"):
            answer = self.server.stream(self.path.split("/")[-2], json.loads(body))
        elif self.path.endswith("/graphql"):
            asked = json.loads(body)
            answer = {"data": self.server.query(asked["operationName"], asked.get("variables") or {})}
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_PUT = do_HEAD = do_GET

    def log_message(self, *_):
        """Nothing on stderr."""
