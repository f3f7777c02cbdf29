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
        whole = {**(before[-1][1] if before else {}), **files}
        name = hashlib.sha1(f"{repo}{len(before)}".encode()).hexdigest()
        before.append((name, whole))
        return name

    def at(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit behind a revision."""
        commits = self.commits.get(repo, [])
        if revision == "main":
            return commits[-1] if commits else None
        return next((each for each in commits if each[0] == revision), None)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def _answer(self, code: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, document: Any, code: int = 200) -> None:
        self._answer(code, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _begin(self) -> tuple[list[str], bytes] | None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._json({"error": f"Invalid token {self.headers.get('Authorization')}"}, 401)
            return None
        return path.strip("/").split("/"), body

    def do_POST(self) -> None:
        begun = self._begin()
        if begun is None:
            return
        words, body = begun
        if words == ["api", "repos", "create"]:
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            url = {"url": f"{self.hub.url}/{repo}"}
            if repo in self.hub.visibility:
                self._json({"error": "You already created this model repo", **url}, 409)
                return
            self.hub.visibility[repo] = asked["visibility"]
            self._json(url)
        elif words == ["api", "validate-yaml"]:
            self._json({"errors": [], "warnings": []})
        elif words[:2] == ["api", "models"] and words[4] == "preupload":
            files = json.loads(body)["files"]
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            self._json({"files": [{"path": file["path"], **regular} for file in files]})
        elif words[:2] == ["api", "models"] and words[4] == "commit":
            self._commit("/".join(words[2:4]), body)
        else:
            self._json({"error": "unknown"}, 404)

    def _commit(self, repo: str, body: bytes) -> None:
        files = {}
        for line in body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                assert entry["value"]["encoding"] == "base64"
                files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
        name = self.hub.commit(repo, files)
        self._json({"commitUrl": f"{self.hub.url}/{repo}/commit/{name}", "commitOid": name})

    def do_GET(self) -> None:
        begun = self._begin()
        if begun is None:
            return
        words, _ = begun
        # api/models/USER/NAME, .../revision/REVISION or .../tree/REVISION; USER/NAME/resolve/...
        asked = words[2:] if words[:2] == ["api", "models"] else words
        found = self.hub.at("/".join(asked[:2]), asked[3] if len(asked) > 3 else "main")
        if found is None or (asked is words and "/".join(words[4:]) not in found[1]):
            self._json({"error": "not found"}, 404)
        elif asked is words:
            content = found[1]["/".join(words[4:])]
            etag = hashlib.sha1(content).hexdigest()
            self._answer(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": found[0]})
        else:
            sizes = {path: len(content) for path, content in found[1].items()} | self.hub.sizes
            listed = [
                {"type": "file", "oid": "0", "path": path, "rfilename": path, "size": sizes[path]}
                for path in found[1]
            ]
            about = {"id": "/".join(asked[:2]), "sha": found[0], "private": True}
            self._json(listed if asked[2:3] == ["tree"] else {**about, "siblings": listed})

    do_HEAD = do_GET  # noqa: N815


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that answers until the block ends."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
