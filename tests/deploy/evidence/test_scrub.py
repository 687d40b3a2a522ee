"""What is taken out of a captured text, what stays, and that no text makes it slow."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.evidence.capture.scrub import scrub, scrub_text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("write to jane.doe+x@mail.example.org, please", "write to <mail>, please"),
        ("mailto=jane%40example.org", "mailto=<mail>"),
        ("call +49 (0)30 1234-5678 now", "call <number> now"),
        ("card 4111 1111 1111 1111.", "card <number>."),
        ("the key is sk-proj-abcDEF123456789012345", "the key is <key>"),
        ("AKIAIOSFODNN7EXAMPLE", "<key>"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefgh", "<key>"),
        ("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "<key>"),
        ("X=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "X=<key>"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- ok", "<key> ok"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nlQOY\n-----END PGP PRIVATE KEY BLOCK-----.", "<key>."),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl and so on", "<key>"),
    ],
)
def test_keys_mails_and_numbers_are_replaced(text: str, kept: str) -> None:
    assert scrub_text(text) == kept


SECRET = "hunter22"


@pytest.mark.parametrize(
    "text",
    [
        "password: §, user: bob",
        "DB_PASSWORD=§",
        "export DB_PASS=§; make",
        "PGPASSWORD=§ psql",
        "POSTGRES_PASSWORD_PROD = §",
        "SECRET_KEY_BASE=§",
        "password1: §",
        "passwords: §",
        "Passwort: §",
        "passphrase=§",
        "db-pwd=§",
        'client_secret: "§"',
        "clientSecret = '§'",
        "access_token=§",
        "https://api.example.org/v1?access_token=§",
        "?password%3D§",
        "refreshToken: `§`",
        '"apiKey": "§"',
        "x-api-key: §",
        "Ocp-Apim-Subscription-Key: §",
        "AccountKey=§;EndpointSuffix=core",
        "aws_secret_access_key = §",
        '{"api_key": "§"}',
        '{\\"password\\": \\"§\\"}',
        '{\\\\"password\\\\": \\\\"§\\\\"}',
        "os.environ['API_KEY'] = '§'",
        'if password == "§":',
        'password != "§"',
        ":password => '§',",
        "let secret := §",
        "**Password:** §",
        "password:\n  §",
        "<password>§</password>",
        "mysql --password § db",
        "tool --api-key=§ run",
        "tool --auth-token '§' run",
        "my password is § and my name is Bob",
        "The passphrase was: §",
        "Authorization: Bearer §",
        "Authorization: Basic §",
        "-H 'Authorization: token §'",
        '{"Authorization": "Bearer §"}',
        "proxy-authorization=§",
        "Cookie: theme=dark; session=§",
        '"Set-Cookie": "sid=§; Path=/"',
        "it sent bearer §",
        "postgres://bob:§@db:5432/app",
        "redis://:§@cache",
        "(token=§)",
        "token: §, token: §",
    ],
)
def test_a_secret_is_found_however_it_is_spelled(text: str) -> None:
    scrubbed = scrub_text(text.replace("§", SECRET))
    assert SECRET not in scrubbed
    assert "<key>" in scrubbed


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("password: hunter22, user: bob", "password: <key>, user: bob"),
        ('{"api_key": "xyz987654", "n": 1}', '{"api_key": "<key>", "n": 1}'),
        ('password: "two words, and more" # note', 'password: "<key>" # note'),
        (r'password: "a\"b c" # note', 'password: "<key>" # note'),
        (r"{\"password\": \"a b\", \"n\": 1}", r"{\"password\": \"<key>\", \"n\": 1}"),
        ("<password>hunter22</password> stays", "<password><key></password> stays"),
        ("curl -H 'Authorization: Bearer abc.def-123456' -v", "curl -H 'Authorization: <key>' -v"),
        ("(see token=abc123).", "(see token=<key>)."),
        ("postgres://bob:hunter22@db:5432/app", "postgres://<key>@db:5432/app"),
    ],
)
def test_what_stands_around_a_secret_stays(text: str, kept: str) -> None:
    assert scrub_text(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "In 2024 we sold 3,500 units at 19.99 each.",
        "def add(a, b): return a + b  # O(1), 100 %",
        "The token limit of the model is 4096.",
        "max_tokens=4096, token_count: 5000, tokens: 6000",
        "What is 123456 divided by 7?",
        "internationalization_of_everything_everywhere",
        "The token is invalid, and the password is wrong.",
        'password = ""; token: ""',
        "A secret, and an API key; a secretary: Mary Jones",
        "Open http://127.0.0.1:8000/health and look.",
        "bearer of bad news",
    ],
)
def test_ordinary_text_and_code_stay_as_they_are(text: str) -> None:
    assert scrub_text(text) == text


def test_every_text_inside_a_message_is_scrubbed() -> None:
    parts = [{"type": "text", "text": "mail a@b.io"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert scrub([{"role": "user", "content": parts, "n": 3}])[0] == {
        "role": "user",
        "content": [{"type": "text", "text": "mail <mail>"}, parts[1]],
        "n": 3,
    }


def test_what_a_key_names_as_a_secret_goes_as_a_whole() -> None:
    asked = {"dbPassword": "abc", "pin_token": 1234, "max_tokens": 9, "token": True, "user": {"api-key": "a b"}}
    assert scrub(asked) == {**asked, "dbPassword": "<key>", "pin_token": "<key>", "user": {"api-key": "<key>"}}


FRAGMENTS = (
    *("password", "DB_PASSWORD", "token", "apiKey", "secret", "_pass", "--api-key", "pin", "is", "authorization"),
    *("cookie", "bearer", "sk-", "eyJ", "AKIA", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "://"),
    *("=", ":", "=>", "%3D", "%40", "@", ".", ",", "-", "+", "/", "_", "(", ")", "<", ">", "</", "\\", '"', "'", "`"),
    *("*", " ", "\n", "1", "1234567", "hunter22", "abcdefgh", "a1b2c3d4e5f6a7b8c9d0e1f2", "é", "\ud800"),
    *("<key>", "<mail>", "<number>", "key", "mail"),
)
texts = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)


@given(texts)
def test_scrubbing_twice_is_scrubbing_once(text: str) -> None:
    once = scrub_text(text)
    assert scrub_text(once) == once


@given(values)
def test_any_json_value_is_scrubbed_into_one_of_the_same_shape(value: Any) -> None:
    scrubbed = scrub(value)
    assert repr(scrub(scrubbed)) == repr(scrubbed)
    if isinstance(value, dict):
        assert scrubbed.keys() == value.keys()
    if isinstance(value, list):
        assert len(scrubbed) == len(value)


HOSTILE = (
    *("a", "a.", "1 ", "-", "=", "\\", '"', "é", "a@", "a@b", "eyJ-", "eyJaaaaaaaa.", "sk-", "bearer ", "bearer  "),
    *("-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "://", "://a:", "token", "token=", "token:,", "token: "),
    *("--token ", "--", "password_", "password is ", 'token="\\', "token=\\", "authorization:", "cookie: a", "cookie:"),
    *("AKIA", "%40", "token>", "secret key", "access", "<key>", "password=<", "(0", "a/1", "é1"),
)


def seconds_for(text: str) -> float:
    taken = []
    for _ in range(2):
        began = time.process_time()
        scrub_text(text)
        taken.append(time.process_time() - began)
    return min(taken)


@pytest.mark.parametrize("piece", HOSTILE)
def test_no_text_takes_more_than_in_proportion_to_its_length(piece: str) -> None:
    short, long = (piece * (size // len(piece)) for size in (2_000, 16_000))
    # Eight times as long; what is quadratic takes 64 times as long.
    assert seconds_for(long) < 24 * max(seconds_for(short), 1e-4)
