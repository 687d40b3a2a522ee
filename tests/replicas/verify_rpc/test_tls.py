"""With certificates both sides must show one of the same authority."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fleet.config import TlsConfig
from fleet.errors import ConfigError, DraftUnavailable
from replicas.verify_rpc.client import dial
from tests.replicas.verify_rig import HELLO, serving


class Authority:
    """Signs certificates for 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name)])
        self._certificate = self._sign(self._name, self._key, is_authority=True)
        (folder / "ca.pem").write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> TlsConfig:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate, private = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(self._sign(subject, key).public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return TlsConfig(certificate=certificate, key=private, ca=self._folder / "ca.pem")

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool = False
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(self._key, hashes.SHA256())
        )


async def test_two_certificates_of_one_authority_meet(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ours")
    async with (
        serving(tls=authority.issue("target")) as (_, address),
        dial(address, HELLO, authority.issue("draft")) as (_, welcome),
    ):
        assert welcome.model == "toy target"


async def test_a_draft_of_another_authority_or_without_a_certificate_stays_outside(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    stranger = theirs.issue("draft").model_copy(update={"ca": ours.issue("target").ca})
    async with serving(tls=ours.issue("target")) as (server, address):
        for tls in (None, theirs.issue("draft"), stranger):
            with pytest.raises(DraftUnavailable):
                async with dial(address, HELLO, tls):
                    pass
    assert server.proposer.state().health == "lost"


async def test_a_missing_certificate_is_named_in_one_line(tmp_path: Path) -> None:
    tls = TlsConfig(certificate=tmp_path / "no.pem", key=tmp_path / "no.key", ca=tmp_path / "no-ca.pem")
    with pytest.raises(ConfigError, match=r"cannot read .*no\.key: No such file"):
        async with serving(tls=tls):
            pass
