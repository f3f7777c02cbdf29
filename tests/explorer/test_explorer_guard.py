"""Faults 20, 28 and 29: whatever a foreign page or a hostile request tries, it is refused."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.explorer import Served
from explorer.conftest import HOST, Page, opened
from forged import forge, taken_apart
from imel.cli.main import main
from imel.errors import ImelError
from imel.explorer import server
from imel.explorer.server import FIRST_PORT, LARGEST_BODY, check_host, open_port
from imel.explorer.session import Session

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "localhost.evil.example:1", ""]
)
def test_fault_20_a_foreign_host_is_refused(page: Page, host: str) -> None:
    for path in ("/", "/api/run"):
        answer = page.client.get(path, headers={"Host": host})
        assert answer.status_code == 400
        assert answer.text == "Invalid host header"


@pytest.mark.parametrize(
    "headers",
    [
        *({"Origin": f"{origin}"} for origin in ("http://evil.example", "null", "")),
        *({"Origin": f"{origin}"} for origin in (f"https://{HOST}", "http://127.0.0.1:8643")),
        *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site")),
    ],
)
def test_fault_20_a_request_that_a_foreign_page_caused_is_refused(
    page: Page, headers: dict[str, str]
) -> None:
    assert page.client.get("/api/run", headers=headers).status_code == 403
    body = json.dumps({"model": page.newest, "rows": [0]})
    # What a form of another site can send without asking first
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json"):
        sent = {**headers, "Content-Type": kind}
        assert page.client.post("/api/forget", content=body, headers=sent).status_code == 403


def test_the_pages_own_requests_are_answered(page: Page) -> None:
    headers = {"Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-origin"}
    body = {"model": page.newest, "rows": [0]}
    assert page.client.post("/api/forget", json=body, headers=headers).status_code == 200


def test_other_methods_are_refused(page: Page) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert page.client.request(method, "/api/run").status_code == 405
    assert page.client.get("/api/forget").status_code == 404


@pytest.fixture
def served(session: Session) -> Iterator[Served]:
    with Served(session) as running:
        yield running


def raw(
    served: Served, method: str, target: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    """A request as it is, which no library has tidied."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.putrequest(method, target, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(body or None)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_fault_20_no_path_leads_out(served: Served) -> None:
    for target in (
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/../../../pyproject.toml",
        "//etc/passwd",
        "/..\\..\\etc\\passwd",
        "/explorer.js/../../insight.py",
        *("/../insight.py", "/%2e%2e/insight.py", "/insight.py"),
        *("/%00", "/explorer.css%00.py", "/" + "a" * 300),
        *("/api/insight.py", "/static/index.html", "/docs", "/openapi.json"),
    ):
        status, content = raw(served, "GET", target)
        assert status == 404, target
        assert content == b"Not Found"


def test_fault_20_names_in_a_query_are_no_paths(page: Page) -> None:
    on = {"frame": "m0", "projection": "states"}
    episode = {"episode": "m0-mean-0"}
    for path, query in (
        *(("model", {}), ("columns", {}), ("evaluation", {}), ("picture", {"row": 0})),
        *(
            ("map", on),
            ("colour", {"frame": "m0", "by": "age"}),
            ("step", {**on, **episode, "step": 0}),
        ),
        *(("trail", {**on, **episode}), ("episode", episode), ("frame", {**episode, "step": 0})),
    ):
        whole: dict[str, Any] = (
            {**query} if path in ("episode", "frame") else {"model": "m0", **query}
        )
        for name in whole.keys() & {"model", "frame", "episode"}:
            for hostile in ("../../etc/passwd", "m0/../../x", "m0\n", "m0-mean-0\n", ""):
                assert page.refusal(path, **{**whole, name: hostile}).startswith(f"{name}: ")
    assert "nonsense: Unexpected keyword" in page.refusal("model", model="m0", nonsense="x")


def test_fault_20_an_oversized_query_or_body_is_refused(served: Served) -> None:
    assert raw(served, "GET", "/api/model?model=" + "m" * 100_000)[0] == 400
    long = {"Content_Length": str(LARGEST_BODY + 1), "Content_Type": "application/json"}
    assert raw(served, "POST", "/api/forget", b"", **long)[0] == 400
    text = b'{"model": "m0", "rows": [0]}'
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text)
    assert raw(served, "POST", "/api/forget", chunked, Transfer_Encoding="chunked")[0] == 400
    assert raw(served, "POST", "/api/forget", text, Content_Length=str(len(text)))[0] == 200


def test_fault_20_a_body_that_is_no_json_or_of_other_types_is_refused(page: Page) -> None:
    for body in (
        b"{",
        b"[1]",
        b'{"model": "m0", "rows": "all"}',
        b'{"model": "m0", "rows": [1.5]}',
        b'{"model": "m0", "rows": [0], "path": "/etc/passwd"}',
        b'{"model": "m0", "rows": [%s0]}' % (b"0," * (1 << 20)),
        b"\xff\xfe",
        b"[" * 100_000,
    ):
        answer = page.client.post("/api/forget", content=body, headers=JSON)
        assert answer.status_code == 400
        assert answer.json()["error"]


def headers_of(served: Served, request: str) -> http.client.HTTPMessage:
    """The headers of the answer to a request that is sent as it is."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        connection.sendall(f"{request}\r\nConnection: close\r\n\r\n".encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.headers


def test_fault_29_every_answer_has_the_security_headers(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in (server.CONNECTIONS, 1):  # with the second one it is always busy
        monkeypatch.setattr(server, "CONNECTIONS", limit)
        with Served(session) as served:
            own = f"Host: 127.0.0.1:{served.port}"
            paths = ("/", "/explorer.js", "/api/run", "/nothing", "/api/model?model=zzz")
            requests = [f"GET {path} HTTP/1.1\r\n{own}" for path in paths]
            for request in (*requests, "GET / HTTP/1.1\r\nHost: evil.example", "no HTTP at all"):
                headers = headers_of(served, request)
                policy = headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "frame-ancestors 'none'" in policy
                assert not re.search(r"https?:|\*|unsafe-inline", policy)
                assert headers["x-content-type-options"] == "nosniff"
                assert headers["x-frame-options"] == "DENY"
                assert headers["access-control-allow-origin"] is None


def test_the_page_loads_nothing_from_elsewhere_and_has_no_code_of_its_own(page: Page) -> None:
    text = page.client.get("/").text
    assert not re.search(r"https?://|<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", text)
    assert "url(" not in page.client.get("/explorer.css").text


# --- where it listens ---


def test_other_machines_are_kept_out_unless_asked_for() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        check_host(host, allow_remote=False)
    for host in ("192.168.1.5", "example.org", "2001:db8::1"):
        with pytest.raises(ImelError, match="--allow-remote"):
            check_host(host, allow_remote=False)
        check_host(host, allow_remote=True)
    for host in ("0.0.0.0", "::"):
        with pytest.raises(ImelError, match="no address of its own"):
            check_host(host, allow_remote=True)


def test_a_server_answers_to_its_own_names_also_of_version_6(session: Session) -> None:
    names = {"localhost", "127.0.0.1", "[::1]"}
    for host, own in (("127.0.0.1", names), ("2001:db8::1", names | {"[2001:db8::1]"})):
        (guard,) = server.make_app(session, host).user_middleware
        allowed: Any = guard.kwargs["allowed_hosts"]
        assert set(allowed) == own


def test_a_busy_port_is_said_and_by_default_another_one_is_taken() -> None:
    with open_port("127.0.0.1", None) as first, open_port("127.0.0.1", None) as second:
        ports = {first.getsockname()[1], second.getsockname()[1]}
        assert len(ports) == 2
        assert min(ports) >= FIRST_PORT
        with pytest.raises(ImelError, match=r"port \d+: Address already in use"):
            open_port("127.0.0.1", first.getsockname()[1])


# --- what is refused at the start ---


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert main(["explore", *argv, "--no-browser"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_run_that_is_missing_or_damaged_is_refused_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for empty in (tmp_path / "nowhere", tmp_path):
        assert "holds no model" in refusal(capsys, str(empty))
    damaged = tmp_path / "model.safetensors"
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-100] ^= 1
    damaged.write_bytes(content)
    assert "is damaged" in refusal(capsys, str(tmp_path))
    damaged.write_bytes(b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.")
    assert "no imel checkpoint" in refusal(capsys, str(damaged))
    assert refusal(capsys, str(run), "--host", "192.168.1.5").count("--allow-remote") == 1
    assert "port=99999" in refusal(capsys, str(run), "--port", "99999")
    with open_port("127.0.0.1", None) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port}" in refusal(capsys, str(run), "--port", port)


# --- clients and models that do harm ---


def test_fault_28_the_page_says_what_is_wrong_with_a_model_that_holds_nan(
    run: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(run, tmp_path / "run"))
    (oldest, *_) = sorted((broken / "checkpoints").iterdir())
    manifest, tensors = taken_apart(oldest)
    tensors["policy/memory.improved_means"][0] = float("nan")
    forge(oldest, manifest, tensors)
    for page in opened(broken):
        page.get("run")
        reason = page.refusal("model", model="m0")
        assert f"{oldest.name}: 'policy/memory.improved_means' has values" in reason


def test_fault_29_good_requests_are_answered_among_many_half_sent_ones(served: Served) -> None:
    half = f"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n".encode()
    with contextlib.ExitStack() as stack:
        for _ in range(80):
            connect = socket.create_connection(("127.0.0.1", served.port))
            stack.enter_context(connect).sendall(half)
        for _ in range(5):
            assert raw(served, "GET", "/api/run")[0] == 200


def test_fault_29_a_client_that_sends_no_whole_request_is_dropped(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SECONDS", 0.2)
    with Served(session) as served:
        own = f"Host: 127.0.0.1:{served.port}\r\n"
        for sent in (
            "",
            "GET /api/run HT",
            f"GET / HTTP/1.1\r\n{own}",
            f"POST /api/forget HTTP/1.1\r\n{own}Content-Length: 50\r\n\r\n{{",
        ):
            with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
                connection.sendall(sent.encode())
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(64) == b""  # closed, without an answer
        whole = f"GET /api/model?model=m0 HTTP/1.1\r\n{own}\r\n".encode()
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
            connection.sendall(whole)
            assert connection.recv(16).startswith(b"HTTP/1.1 200")
            connection.sendall(b"GET /api/run")  # the beginning of another one
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass
