"""A hub on this machine: the few endpoints of the Hugging Face hub that imel uses, in memory."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_thisIsTheSecretOfTheTests"


class Hub:
    """Repositories with their commits, the oldest first; what was asked of it."""

    def __init__(self) -> None:
        self.commits: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.visibility: dict[str, str] = {}
        self.requests: list[str] = []
        self.url = ""
        self.sizes: dict[str, int] = {}
        """Sizes of files that are larger than what is kept of them here."""

    def commit(self, repo: str, files: dict[str, bytes]) -> str:
        """Put files on top of what is there; the commit's name."""
        before = self.commits.setdefault(repo, [])
        name = hashlib.sha1(f"{repo}{len(before)}".encode()).hexdigest()
        before.append((name, {**(before[-1][1] if before else {}), **files}))
        return name


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def _answer(self, content: Any, code: int = 200, **headers: str) -> None:
        if not isinstance(content, bytes):
            content, headers = json.dumps(content).encode(), {"Content-Type": "application/json"}
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _handle(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(path)
        body, words = self.rfile.read(int(self.headers.get("Content-Length", 0))), path.split("/")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer({"error": f"Invalid token {self.headers.get('Authorization')}"}, 401)
        elif self.command == "POST":
            self._post(words[1:], body)
        else:
            self._get(words[1:])

    do_GET = do_HEAD = do_POST = _handle  # noqa: N815

    def _post(self, words: list[str], body: bytes) -> None:
        if words == ["api", "repos", "create"]:
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            known = repo in self.hub.visibility
            self.hub.visibility.setdefault(repo, asked["visibility"])
            self._answer({"url": f"{self.hub.url}/{repo}"}, 409 if known else 200)
        elif words == ["api", "validate-yaml"]:
            self._answer({"errors": [], "warnings": []})
        elif words[4] == "preupload":
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            asked = json.loads(body)["files"]
            self._answer({"files": [{"path": file["path"], **regular} for file in asked]})
        else:
            lines = [json.loads(line) for line in body.splitlines()]
            added = [line["value"] for line in lines if line["key"] == "file"]
            files = {file["path"]: base64.b64decode(file["content"]) for file in added}
            repo = "/".join(words[2:4])
            name = self.hub.commit(repo, files)
            self._answer({"commitUrl": f"{self.hub.url}/{repo}/commit/{name}", "commitOid": name})

    def _get(self, words: list[str]) -> None:
        # api/models/USER/NAME, .../revision/REVISION or .../tree/REVISION; USER/NAME/resolve/...
        listing = words[:2] == ["api", "models"]
        asked = words[2:] if listing else words
        commits, name = self.hub.commits.get("/".join(asked[:2]), []), "/".join(asked[4:])
        revision = asked[3] if len(asked) > 3 else "main"
        found = commits[-1:] if revision == "main" else [c for c in commits if c[0] == revision]
        if not found or not (listing or name in found[0][1]):
            self._answer({"error": "not found"}, 404)
            return
        [(commit, files)] = found
        if not listing:
            etag = f'"{hashlib.sha1(files[name]).hexdigest()}"'
            self._answer(files[name], ETag=etag, X_Repo_Commit=commit)
            return
        sizes = {path: len(content) for path, content in files.items()} | self.hub.sizes
        listed = [
            {"type": "file", "oid": "0", "path": path, "rfilename": path, "size": sizes[path]}
            for path in files
        ]
        about = {"id": "/".join(asked[:2]), "sha": commit, "private": True, "siblings": listed}
        self._answer(listed if asked[2:3] == ["tree"] else about)


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that answers until the block ends."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
