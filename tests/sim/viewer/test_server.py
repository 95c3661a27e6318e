import http.client
import socket

import pytest

from st_rl.sim.viewer.server import Access, ViewerError, claim_port, open_server

LOCAL = Access("127.0.0.1", 8080, None)
SHARED = Access("0.0.0.0", 8080, "secret-token")
COOKIE = {"Cookie": "other=1; st_rl_view_8080=secret-token"}


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080"])
def test_loopback_page_opens_without_a_token(host):
    assert LOCAL.refuse("/", {"Host": host}) is None


def test_rejects_name_that_points_to_this_machine():
    refusal = LOCAL.refuse("/", {"Host": "rebound.example.com:8080"})
    assert refusal is not None
    assert refusal.status == 403


@pytest.mark.parametrize(("access", "headers"), [(LOCAL, {}), (SHARED, COOKIE)])
def test_rejects_websocket_of_another_site(access, headers):
    headers = {**headers, "Host": "127.0.0.1:8080", "Upgrade": "websocket"}
    assert access.refuse("/", {**headers, "Origin": "http://127.0.0.1:8080"}) is None
    refusal = access.refuse("/", {**headers, "Origin": "http://evil.example.com"})
    assert refusal is not None
    assert refusal.status == 403


@pytest.mark.parametrize("headers", [{}, {"Upgrade": "websocket"}, {"Cookie": "st_rl_view_8080=guess"}])
def test_without_the_token_nothing_is_served(headers):
    for path in ("/", "/?token=guess", "/assets/index.js"):
        refusal = SHARED.refuse(path, {"Host": "robot:8080", **headers})
        assert refusal is not None
        assert refusal.status == 401


def test_token_in_the_address_becomes_a_cookie_with_which_the_page_opens():
    refusal = SHARED.refuse("/?token=secret-token", {"Host": "robot:8080"})
    assert refusal is not None
    assert (refusal.status, refusal.headers["Location"]) == (302, "/")
    cookie = refusal.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert SHARED.refuse("/", {"Host": "robot:8080", "Cookie": cookie.split(";")[0]}) is None


def test_address_shows_the_token():
    assert LOCAL.address == "http://127.0.0.1:8080/"
    assert SHARED.address.endswith(":8080/?token=secret-token")


def test_port_in_use_is_named_with_what_to_type():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ViewerError, match=rf"cannot open port {port} on 127\.0\.0\.1 .*--port 0"):
            claim_port("127.0.0.1", port)
    assert claim_port("127.0.0.1", 0) > 0


@pytest.mark.parametrize(
    ("host", "port", "message"), [("127.0.0.1", 70000, "no port"), ("no.such.invalid", 1, "no address")]
)
def test_impossible_address_is_named(host, port, message):
    with pytest.raises(ViewerError, match=message):
        claim_port(host, port)


def read_status(port, path="/", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders())


def test_served_page_and_its_websocket_need_the_token():
    pytest.importorskip("mjviser", reason='pip install "st_rl[view]"')
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    server, access = open_server("0.0.0.0", 0)
    try:
        port, protocol = access.port, f"viser-v{viser_version()}"
        assert read_status(port)[0] == 401
        assert read_status(port, "/?token=guess")[0] == 401
        status, headers = read_status(port, f"/?token={access.token}")
        assert (status, headers["Location"]) == (302, "/")
        cookie = headers["Set-Cookie"].split(";")[0]
        assert read_status(port, Cookie=cookie)[0] == 200
        address = f"ws://127.0.0.1:{port}/"
        with pytest.raises(InvalidStatus, match="401"), connect(address, subprotocols=[protocol]):
            pass
        with connect(address, subprotocols=[protocol], additional_headers={"Cookie": cookie}) as socket_:
            assert socket_.recv(timeout=20)
    finally:
        server.stop()


def viser_version():
    import viser

    return viser.__version__
