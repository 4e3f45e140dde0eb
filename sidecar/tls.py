"""How a server's certificate is verified, and why it was refused."""

import ssl
from pathlib import Path


def verifying(ca_file: Path | None = None) -> ssl.SSLContext:
    """A context that verifies servers by the CA certificates in a PEM file, or by the system's.

    Blocks, since it reads files. The context accepts what Prometheus and curl accept, on every
    Python: a chain that ends at any of these certificates, an intermediate one included, whatever
    extensions they have. By default Python 3.13 refuses a CA without a key usage, such as
    ``openssl req -x509`` makes, and older versions refuse an intermediate one
    (https://docs.python.org/3/library/ssl.html#ssl.create_default_context).

    Raises:
        OSError: the file cannot be read; an ``ssl.SSLError`` if it has no certificate.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def client_context(*, tls: ssl.SSLContext | bool) -> ssl.SSLContext:
    """A given context, or one that verifies by the system's CAs (True) or nothing. May block."""
    if isinstance(tls, ssl.SSLContext):
        return tls

    context = verifying()
    if not tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def connection_fault(error: Exception) -> str:
    """Why a connection failed: why a certificate was refused, otherwise the error's class."""
    refused = getattr(error, "certificate_error", error)  # aiohttp wraps it
    if isinstance(refused, ssl.SSLCertVerificationError):
        return f"certificate refused: {refused.verify_message.removesuffix('.')}"
    return type(error).__name__
