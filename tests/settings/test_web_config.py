import ssl

import pytest
import yaml

from sidecar.settings.files import read_web_config
from tests.http.certificates import hashed

HASH = hashed("secret")


def problem(folder, values):
    path = folder / "web.yaml"
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what the tests compare
        read_web_config(path)
    return str(caught.value)


def test_a_file_with_tls_and_users(authority):
    config = read_web_config(authority.web_config(users={"a": "b"}, min_version="TLS13"))
    assert config.tls.minimum_version == ssl.TLSVersion.TLSv1_3
    assert config.tls.verify_mode == ssl.CERT_NONE
    assert list(config.users) == ["a"]
    assert {path.name for path in config.files} == {"web.yaml", "server.certificate.pem", "server.key.pem"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"basic_auth_users": {}}, "neither tls_server_config nor basic_auth_users is set"),
        ("a: [", "line 1 is not valid YAML: expected the node content, but found '<stream end>'"),
        (
            {"basic_auth_users": {"a": "secret"}},
            "basic_auth_users.a: expected a name without a colon, and a bcrypt hash of cost 4 to 13",
        ),
        (
            {"basic_auth_users": {"a": HASH.replace("$04$", "$20$")}},
            "basic_auth_users.a: expected a name without a colon, and a bcrypt hash of cost 4 to 13",
        ),
        (
            {"basic_auth_users": {"a": HASH}, "http_server_config": {"headers": {"X": "y"}}},
            "http_server_config: not supported; remove it",
        ),
        (
            {"tls_server_config": {"cert_file": "c", "key_file": "k", "cipher_suites": []}},
            "tls_server_config.cipher_suites: not supported; remove it",
        ),
        ({"tls_server_config": {"cert_file": "c"}}, "tls_server_config.key_file: missing"),
        (
            {"tls_server_config": {"cert_file": "c", "key_file": "k"}},
            "tls_server_config: FOLDER/c: cannot be read: No such file or directory",
        ),
        (
            {"tls_server_config": {"cert_file": "c", "key_file": "k", "client_auth_type": "RequireAnyClientCert"}},
            (
                "tls_server_config.client_auth_type: input should be 'NoClientCert', 'VerifyClientCertIfGiven' or "
                "'RequireAndVerifyClientCert'"
            ),
        ),
        (
            {"tls_server_config": {"cert_file": "c", "key_file": "k", "client_ca_file": "ca"}},
            "client_ca_file and a client_auth_type that verifies must be set together",
        ),
    ],
)
def test_faults_are_reported(tmp_path, values, expected):
    assert problem(tmp_path, values) == expected.replace("FOLDER", str(tmp_path))


def test_a_key_that_is_not_the_certificates(authority):
    certificate, _ = authority.issue("one")
    _, key = authority.issue("two")
    found = problem(authority.folder, {"tls_server_config": {"cert_file": str(certificate), "key_file": str(key)}})
    assert "do not match (KEY_VALUES_MISMATCH)" in found


def test_an_encrypted_key_asks_no_terminal(authority):
    import subprocess

    certificate, key = authority.issue("one")
    command = ["openssl", "ec", "-aes128", "-passout", "pass:x", "-in", key, "-out", authority.folder / "locked.pem"]
    subprocess.run(command, check=True, capture_output=True)
    values = {"tls_server_config": {"cert_file": str(certificate), "key_file": "locked.pem"}}
    assert "not usable PEM files" in problem(authority.folder, values)


def test_messages_do_not_quote_what_should_be_a_hash(tmp_path):
    assert HASH not in problem(tmp_path, {"basic_auth_users": {"a:b": HASH}})
    assert "sec" not in problem(tmp_path, {"basic_auth_users": {"a": "sec"}})
    assert HASH not in problem(tmp_path, f"basic_auth_users: {{'a:{HASH}'}}")  # a line of htpasswd's
