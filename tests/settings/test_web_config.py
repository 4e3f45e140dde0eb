import ssl
import subprocess

import pytest

from sidecar.settings.web_config import read_web_config

HASH = "$2b$04$" + "a" * 53
USERS = "basic_auth_users.a: expected a name without a colon, and a bcrypt hash of cost 4 to 13"
TLS = "tls_server_config: {cert_file: c, key_file: k"
HTPASSWD = "basic_auth_users.a: input should be a valid string"  # of one of its lines
AUTH_TYPES = (
    "input should be 'NoClientCert', 'VerifyClientCertIfGiven' or 'RequireAndVerifyClientCert'"
)


def problem(folder, text):
    path = folder / "web.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what the tests compare
        read_web_config(path)
    assert HASH not in str(caught.value)
    return str(caught.value)


def test_a_file_with_tls_and_users_is_read_with_the_certificates_that_it_names(authority):
    config = read_web_config(authority.web_config(users={"a": "b"}, min_version="TLS13"))

    assert config.tls.minimum_version == ssl.TLSVersion.TLSv1_3
    assert config.tls.verify_mode == ssl.CERT_NONE
    assert list(config.users) == ["a"]
    assert {path.name for path in config.files} == {
        "web.yaml",
        "server.certificate.pem",
        "server.key.pem",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("basic_auth_users: {}", "neither tls_server_config nor basic_auth_users is set"),
        ("a: [", "line 1 is not valid YAML: expected the node content, but found '<stream end>'"),
        ("basic_auth_users: {a: secret}", USERS),
        (f"basic_auth_users: {{'a:b': {HASH}}}", USERS),
        (f"basic_auth_users: {{'a:{HASH}'}}", f"{USERS}; {HTPASSWD}"),
        (f"basic_auth_users: {{a: {HASH.replace('$04$', '$20$')}}}", USERS),
        ("http_server_config: {headers: {X: y}}", "http_server_config: not supported; remove it"),
        (TLS + ", cipher_suites: []}", "tls_server_config.cipher_suites: not supported; remove it"),
        ("tls_server_config: {cert_file: c}", "tls_server_config.key_file: missing"),
        (TLS + "}", "tls_server_config: FOLDER/c: cannot be read: No such file or directory"),
        (
            TLS + ", client_auth_type: RequireAnyClientCert}",
            f"tls_server_config.client_auth_type: {AUTH_TYPES}",
        ),
        (
            TLS + ", client_ca_file: ca}",
            "client_ca_file and a client_auth_type that verifies must be set together",
        ),
    ],
)
def test_an_unusable_file_is_refused_with_the_key_and_the_reason(tmp_path, text, expected):
    assert problem(tmp_path, text) == expected.replace("FOLDER", str(tmp_path))


def test_a_key_of_another_certificate_and_an_encrypted_one_are_refused_without_asking_the_terminal(
    authority,
):
    certificate, key = authority.issue("server")
    _, other = authority.issue("other")
    pair = f"tls_server_config: {{cert_file: {certificate}, key_file: {other}}}"
    assert "do not match (KEY_VALUES_MISMATCH)" in problem(authority.folder, pair)
    command = [
        "openssl",
        "ec",
        "-aes128",
        "-passout",
        "pass:x",
        "-in",
        key,
        "-out",
        authority.folder / "locked.pem",
    ]
    subprocess.run(command, check=True, capture_output=True)
    pair = f"tls_server_config: {{cert_file: {certificate}, key_file: locked.pem}}"

    assert "not usable PEM files" in problem(authority.folder, pair)
