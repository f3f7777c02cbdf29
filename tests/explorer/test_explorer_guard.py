"""Faults 20, 28 and 29: whatever a foreign page or a hostile request tries, it is refused."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from benchmarks.explorer import Served
from explorer.conftest import HOST, OWN, Page
from forged import forge, taken_apart
from imel.cli.main import main
from imel.errors import ImelError
from imel.explorer import connections, guard
from imel.explorer.server import FIRST_PORT, check_host, hosts_of, make_app, open_port
from imel.explorer.session import Session
from imel.runs.stored import find_run


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8642",
        "127.0.0.1:1",
        "127.0.0.1",
        "localhost.evil.example:8642",
        "",
    ],
)
def test_fault_20_a_foreign_host_is_refused(page: Page, host: str) -> None:
    for path in ("/", "/api/run"):
        answer = page.client.get(path, headers={"Host": host})
        assert answer.status_code == 403
        assert "memories" not in answer.text


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://127.0.0.1:8642", "http://127.0.0.1:8643", ""],
)
def test_fault_20_a_foreign_origin_is_refused(page: Page, origin: str) -> None:
    headers = {"Origin": origin, **OWN}
    assert page.client.get("/api/run", headers=headers).status_code == 403
    body = {"model": page.newest, "rows": [0]}
    assert page.client.post("/api/forget", json=body, headers=headers).status_code == 403


def test_the_pages_own_origin_is_answered(page: Page) -> None:
    headers = {"Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-origin", **OWN}
    body = {"model": page.newest, "rows": [0]}
    assert page.client.post("/api/forget", json=body, headers=headers).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_fault_20_a_request_that_another_site_caused_is_refused(page: Page, site: str) -> None:
    answer = page.client.get("/api/run", headers={"Sec-Fetch-Site": site})
    assert answer.status_code == 403


def test_fault_20_what_a_foreign_form_can_send_starts_nothing(page: Page) -> None:
    body = json.dumps({"model": page.newest, "rows": [0]})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {"Content-Type": kind}
        assert page.client.post("/api/forget", content=body, headers=headers).status_code == 403
        answer = page.client.post("/api/forget", content=body, headers={**headers, **OWN})
        assert answer.status_code == 400
    plain = {"Content-Type": "application/json"}
    assert page.client.post("/api/forget", content=body, headers=plain).status_code == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_refused(page: Page, method: str) -> None:
    assert page.client.request(method, "/api/run", headers=OWN).status_code == 400


@pytest.fixture
def served(session: Session) -> Any:
    with Served(session) as server:
        yield server


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


@pytest.mark.parametrize(
    "target",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/../../../pyproject.toml",
        "//etc/passwd",
        "/..\\..\\etc\\passwd",
        "/explorer.js/../../insight.py",
        "/%00",
        "/explorer.css%00.py",
        "/" + "a" * 300,
    ],
)
def test_fault_20_no_path_leads_out(served: Served, target: str) -> None:
    status, content = raw(served, "GET", target)
    assert status == 400
    assert b"root:" not in content
    assert b"import" not in content


@pytest.mark.parametrize(
    "target", ["/insight.py", "/api/insight.py", "/static/index.html", "/docs", "/openapi.json"]
)
def test_only_listed_files_are_served(served: Served, target: str) -> None:
    assert raw(served, "GET", target)[0] == 404


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("model", "model"),
        ("map", "model"),
        ("map", "frame"),
        ("step", "episode"),
        ("episode", "episode"),
        ("frame", "episode"),
        ("job", "job"),
    ],
)
def test_fault_20_names_in_a_query_are_no_paths(page: Page, path: str, name: str) -> None:
    query = {"model": "m0", "frame": "m0", "step": "0", "projection": "states"}
    for hostile in ("../../etc/passwd", "/etc/passwd", "m0/../../x", "m0\n"):
        assert page.refusal(path, **{**query, name: hostile}).startswith(f"{name}: ")


def test_fault_20_an_oversized_query_is_refused(served: Served) -> None:
    assert raw(served, "GET", "/api/model?model=m0&x=" + "1" * guard.LONGEST_QUERY)[0] == 400
    # Beyond what a line may have, the server itself gives up
    assert raw(served, "GET", "/api/model?model=" + "m" * 100_000)[0] == 400


def test_fault_20_an_oversized_body_is_refused_whether_or_not_it_says_so(served: Served) -> None:
    headers = {"Content_Type": "application/json", "X_Imel_Explorer": "1"}
    length = str(guard.LARGEST_BODY + 1)
    long = {"Content_Length": length, **headers}
    assert raw(served, "POST", "/api/forget", b"", **long)[0] == 400
    blank = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    text = b'{"model": "m0", "rows": [0]}'
    document = b"%x\r\n%s\r\n" % (len(text), text)
    body = document + blank * (guard.LARGEST_BODY // 0x10000) + b"0\r\n\r\n"
    chunked = {"Transfer_Encoding": "chunked", **headers}
    assert raw(served, "POST", "/api/forget", body, **chunked)[0] == 400
    short = document + blank + b"0\r\n\r\n"
    assert raw(served, "POST", "/api/forget", short, **chunked)[0] == 200
    assert raw(served, "GET", "/api/run")[0] == 200


def test_many_rows_are_bounded_by_their_number_too(page: Page) -> None:
    body = {"model": page.newest, "rows": [0] * ((1 << 20) + 1)}
    assert page.client.post("/api/forget", json=body, headers=OWN).status_code == 400


def test_fault_20_a_body_that_is_no_json_or_of_other_types_is_refused(page: Page) -> None:
    headers = {"Content-Type": "application/json", **OWN}
    for body in (
        b"{",
        b"[1]",
        b'{"model": "m0", "rows": "all"}',
        b'{"model": "m0", "rows": [1.5]}',
        b'{"model": "m0", "rows": [0], "path": "/etc/passwd"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ):
        answer = page.client.post("/api/forget", content=body, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]


def test_a_header_that_decides_something_must_not_come_twice(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        own = f"Host: 127.0.0.1:{served.port}\r\nHost: evil.example\r\n"
        connection.sendall(f"GET /api/run HTTP/1.1\r\n{own}\r\n".encode())
        assert connection.recv(64).split()[1] == b"400"


def test_every_answer_carries_the_content_security_policy(page: Page) -> None:
    for path in ("/", "/explorer.js", "/api/run", "/nothing", "/api/model?model=zzz"):
        headers = page.client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert not re.search(r"https?:|\*|unsafe-inline", policy)
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    assert (
        page.client.get("/", headers={"Host": "evil.example"}).headers["x-frame-options"] == "DENY"
    )


def test_the_page_loads_nothing_from_elsewhere_and_has_no_code_of_its_own(page: Page) -> None:
    text = page.client.get("/").text
    assert not re.search(r"https?://|<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", text)
    assert "url(" not in page.client.get("/explorer.css").text


# --- where it listens ---


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_needs_no_leave(host: str) -> None:
    check_host(host, allow_remote=False)


@pytest.mark.parametrize("host", ["192.168.1.5", "example.org", "2001:db8::1"])
def test_fault_20_other_machines_are_kept_out_unless_asked_for(host: str) -> None:
    with pytest.raises(ImelError, match="--allow-remote"):
        check_host(host, allow_remote=False)
    check_host(host, allow_remote=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_stands_for_all_is_refused_always(host: str) -> None:
    with pytest.raises(ImelError, match="no address of its own"):
        check_host(host, allow_remote=True)


def test_the_hosts_answered_to_are_this_one_and_its_port() -> None:
    expected = {"localhost:9", "127.0.0.1:9", "[::1]:9"}
    assert hosts_of("127.0.0.1", 9) == expected
    assert hosts_of("192.168.1.5", 9) == expected | {"192.168.1.5:9"}
    assert "[2001:db8::1]:9" in hosts_of("2001:db8::1", 9)


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
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_a_run_that_is_missing_or_damaged_is_refused_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no run directory and no model file" in refusal(capsys, str(tmp_path / "nowhere"))
    assert "holds no model" in refusal(capsys, str(tmp_path))
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


@pytest.mark.parametrize("row", [2**70, 2**31, -1, -(2**70)])
def test_fault_28_a_row_beyond_every_memory_is_refused(page: Page, row: int) -> None:
    body = {"model": page.newest, "rows": [row]}
    answer = page.client.post("/api/forget", json=body, headers=OWN)
    assert answer.status_code == 400
    assert "rows" in answer.json()["error"]


def test_fault_28_the_page_says_what_is_wrong_with_a_model_that_holds_nan(
    run: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(run, tmp_path / "run"))
    (oldest, *_) = sorted((broken / "checkpoints").iterdir())
    manifest, tensors = taken_apart(oldest)
    tensors["policy/memory.improved_means"][0] = float("nan")
    forge(oldest, manifest, tensors)
    session = Session(find_run(broken))
    with TestClient(make_app(session, {HOST}), base_url=f"http://{HOST}") as client:
        assert client.get("/api/run").status_code == 200
        answer = client.get("/api/model?model=m0")
        assert answer.status_code == 400
        assert f"{oldest.name}: 'policy/memory.improved_means' has values" in answer.json()["error"]


def test_fault_29_good_requests_are_answered_among_many_half_sent_ones(served: Served) -> None:
    half = f"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n".encode()
    slow = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(80)]
    for connection in slow:
        connection.sendall(half)
    for _ in range(5):
        assert raw(served, "GET", "/api/run")[0] == 200
    for connection in slow:
        connection.close()


def test_fault_29_a_client_that_sends_no_whole_request_is_dropped(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SECONDS", 0.2)
    with Served(session) as served:
        own = f"Host: 127.0.0.1:{served.port}\r\nX-Imel-Explorer: 1\r\n"
        body = "Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
        for sent in (
            "",
            "GET /api/run HT",
            f"GET / HTTP/1.1\r\n{own}",
            f"POST / HTTP/1.1\r\n{own}{body}",
        ):
            with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
                connection.sendall(sent.encode())
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(64) == b""  # closed, without an answer


def test_fault_29_every_answer_has_the_security_headers_also_of_a_server_that_is_busy(
    page: Page, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "AT_ONCE", 0)
    answer = page.client.get("/api/run")
    assert answer.status_code == 503
    assert answer.headers["x-frame-options"] == "DENY"
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        connection.sendall(b"no HTTP at all\r\n\r\n")
        content = b"".join(iter(lambda: connection.recv(4096), b""))
    assert content.startswith(b"HTTP/1.1 400")
    assert b"x-frame-options: DENY" in content
